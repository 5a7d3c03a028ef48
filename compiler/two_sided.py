"""Two-sided rounding: a matrix is rounded towards the KL of the whole model, which its outputs weight as its inputs do.

The Hessian of that KL for W [N, K] is taken to be H_O (x) H_I, Kronecker factors [N, N] and [K, K] (YAQA,
arXiv:2505.22988), so that errors E = W - Q cost tr(H_O E H_I E'). With H_O = U_O D_O U_O' and H_I = U_I D_I U_I',
unit upper triangular and diagonal, that is the sum of D_O[i] D_I[j] R_ij^2, R = U_O' E U_I. R_ij is the error of entry
ij and a sum over those above it and left of it, and so entries are rounded in that order, each to the code nearest to
W_ij plus the sum. With H_O diagonal this is GPTQ.

Rows and columns come in the order of the largest H_ii first. Rows are taken in blocks: what others add is a product of
matrices; in a block entries of an antidiagonal do not depend on each other. Arithmetic is f32, but for the factors,
which are f64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.fp8 import TYPES
from pyc.compiler.gptq import group_of_columns, nearest_rows
from pyc.compiler.lookup import codebook_of
from pyc.compiler.quantization import INT4_ENDS, INT8_ENDS, QuantizedRows
from pyc.compiler.scales import Bytes, Floats
from pyc.compiler.schemes import Float8, Int4Group, LookupGroup, Quantized
from pyc.runtime.errors import QuantizeError

BLOCK = 128
"""Rows that are rounded together, one antidiagonal after another."""

OWN_DAMPING, DAMPING = 1.0, 0.2
"""What is added to each H_ii: of rows in itself, since those of a stack differ in scale; of columns in their mean. A
text is never all that a model reads (docs/lab/2026-11-two-sided-rounding.md)."""

LEAST_DAMPING = 0.002
"""Of the mean, added to rows beside."""

GIVING_WAY_DAMPING = 0.3
"""The same, where weights give way to inputs that earlier rounding has changed."""


@dataclass(frozen=True, slots=True)
class Factor:
    """The order in which rows or columns are rounded, and U' f32 for them in that order, unit lower triangular."""

    order: NDArray[np.int64]
    lower: Floats


def factor(hessian: Floats, damping: float, own: float = 0.0) -> Factor:
    """Return the factor of a Hessian [n, n], positive semidefinite. Raises QuantizeError when it is not finite.

    `damping` times the diagonal's mean is added to it, and `own` times itself.
    Rows of zeros have no say: a one stands in their diagonal's place.
    """
    if not np.isfinite(hessian).all():
        raise QuantizeError("the activations of the calibration text, or their gradients, contain NaN or infinity")
    h = hessian.astype(np.float64)
    diagonal = np.diag(h).copy()
    silent = diagonal <= 0
    mean = diagonal[~silent].mean() if not silent.all() else 1.0
    h[silent, silent] = diagonal[silent] = mean
    h[np.diag_indices_from(h)] += damping * mean + own * diagonal
    order = np.argsort(-diagonal, kind="stable")
    flipped = h[np.ix_(order[::-1], order[::-1])]
    root = np.linalg.cholesky((flipped + flipped.T) / 2)
    unit = (root / np.diag(root))[::-1, ::-1]
    return Factor(order, np.ascontiguousarray(unit.T, np.float32))


def round_two_sided(
    rows: Floats, scheme: Quantized, outer: Factor, inner: Factor, scale: Floats | None = None
) -> QuantizedRows:
    """Return f32 rows [N, K], a whole matrix, as codes of `scheme`; `outer` is of its rows, `inner` of its columns.

    Scales and zero points are those of rounding to nearest, or given, as in `gptq.round_rows`. Raises QuantizeError as
    `quantize_rows` does.
    """
    stored = nearest_rows(rows, scheme, scale)
    nearest = _nearest(stored, scheme, rows.shape[1])
    count = len(rows)
    weights = np.ascontiguousarray(rows[np.ix_(outer.order, inner.order)])
    errors, codes = np.zeros_like(weights), np.empty(weights.shape, np.uint8)
    for start in range(0, count, BLOCK):
        block = slice(start, min(start + BLOCK, count))
        above = outer.lower[block, :start] @ errors[:start]
        own = np.tril(outer.lower[block, block], -1)
        _round_block(weights[block], above, own, inner, outer.order[block], nearest, errors[block], codes[block])
    found = np.empty_like(codes)
    found[np.ix_(outer.order, inner.order)] = codes
    return QuantizedRows(found, stored.scale, stored.zero, stored.outer)


def _round_block(
    weights: Floats,
    above: Floats,
    own: Floats,
    inner: Factor,
    numbers: NDArray[np.int64],
    nearest: Nearest,
    errors: Floats,
    codes: Bytes,
) -> None:
    """Round rows [R, K], of which `above` is what earlier rows add; `own` [R, R] says what they add to each other."""
    count, inputs = weights.shape
    turned = np.zeros_like(weights)
    for step in range(count + inputs - 1):
        first, last = max(0, step - inputs + 1), min(count, step + 1)
        rows = np.arange(first, last)
        columns = step - rows
        from_rows = above[rows, columns]
        if last > 1:
            from_rows = from_rows + np.einsum("rk,kr->r", own[first:last, :last], errors[:last, columns])
        before = step - first
        from_columns = np.einsum("rk,rk->r", turned[first:last, :before], inner.lower[columns, :before])
        exact = weights[rows, columns]
        code, value = nearest(exact + from_rows + from_columns, numbers[rows], inner.order[columns])
        codes[rows, columns] = code
        error = exact - value
        errors[rows, columns] = error
        turned[rows, columns] = error + from_rows


Nearest = Callable[[Floats, NDArray[np.int64], NDArray[np.int64]], tuple[Bytes, Floats]]
"""Codes of weights [n], given the rows and the columns that they are of, and what these stand for."""


def _nearest(stored: QuantizedRows, scheme: Quantized, inputs: int) -> Nearest:
    """Return how weights are rounded by the scales, zero points or tables of `stored`."""
    scales = stored.group_scales
    divisors = np.where(scales == 0, np.float32(1), scales)
    group = group_of_columns(scheme, inputs)
    if isinstance(scheme, Float8):
        numbers = TYPES[scheme.format]

        def number(exact: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[Bytes, Floats]:
            groups = columns // group
            found = numbers.rounded(np.divide(exact, divisors[rows, groups], dtype=np.float32))
            return found, numbers.values[found] * scales[rows, groups]

        return number
    if isinstance(scheme, LookupGroup):
        codebook = codebook_of(scheme)
        tables = stored.codes[:, ::group] >> np.uint8(codebook.bits)

        def entry(exact: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[Bytes, Floats]:
            groups = columns // group
            found = codebook.nearest(np.divide(exact, divisors[rows, groups], dtype=np.float32), tables[rows, groups])
            return found, codebook.values[found] * scales[rows, groups]

        return entry
    low, high = INT4_ENDS if isinstance(scheme, Int4Group) else INT8_ENDS
    middle = np.full(scales.shape, 8 if isinstance(scheme, Int4Group) else 128, np.float32)
    zeros = middle if stored.zero is None else stored.zero.astype(np.float32)

    def integer(exact: Floats, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[Bytes, Floats]:
        groups = columns // group
        zero = zeros[rows, groups]
        found = np.clip(np.rint(exact / divisors[rows, groups]) + zero, low, high)
        return found.astype(np.uint8), (found - zero) * scales[rows, groups]

    return integer
