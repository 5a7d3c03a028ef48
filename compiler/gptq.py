"""GPTQ: rounds a matrix column by column, and lets the columns that are left make up for what each one loses.

For inputs X [tokens, K] of a product, H = X' X. Rows w of W [N, K] are rounded to codes q so that (w - q) H (w - q)' is
small: columns in order, each to the nearest code, and then the error of column i, divided by U_ii, is taken off the
others by row i of U, where U is upper triangular and U' U = (H + damping)^-1 (Frantar et al., arXiv:2210.17323).
Scales and zero points are those of `quantization.quantize_rows`, so the codes are of the same scheme, and no kernel
knows the difference. Columns come in the order of the largest H_ii first; what follows them absorbs their errors.

Where earlier rounding has changed the inputs to X from Y, W gives way first to W Y'X (X'X + damping)^-1, whose products
with X are nearest to those of W with Y (the asymmetric calibration of arXiv:2504.02692, in closed form).

Rows do not depend on each other. Arithmetic is f32, but for the inverse of H, which is f64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.fp8 import TYPES, group_of
from pyc.compiler.lookup import codebook_of
from pyc.compiler.quantization import INT4_ENDS, INT8_ENDS, QuantizedRows, float8_rows, nvfp4_rows, quantize_rows
from pyc.compiler.scales import Bytes, Floats
from pyc.compiler.schemes import Float8, Int4Group, Int8Channel, LookupGroup, Quantized
from pyc.runtime.errors import QuantizeError

BLOCK = 128
"""Columns whose errors are gathered before the rest of the matrix is touched."""

DAMPING = 0.3
"""What is added to each H_ii, of their mean: a text is never all that a model reads. The 0.01 of the paper lost a tenth
more on text of another kind, and nothing less on text of the same (docs/lab/2026-11-two-sided-rounding.md)."""


@dataclass(frozen=True, slots=True)
class Hessian:
    """The order in which columns are rounded, U f32 [K, K] for them in that order, and H f32 with its damping."""

    order: NDArray[np.int64]
    factor: Floats
    damped: Floats
    correction: Floats | None = None


def prepare(
    gram_matrix: Floats, cross: Floats | None = None, damping: float = DAMPING, group: int = 1
) -> Hessian:
    """Return what rounding needs of X' X, and of Y' X where the exact inputs Y are others. Raises QuantizeError when it
    is not finite.

    With `group`, columns of a group follow one another: groups in the order of the largest sum of H_ii, columns in it
    in that of H_ii. Inputs that were zero throughout have no say: a one stands in their place.
    """
    if not np.isfinite(gram_matrix).all():
        raise QuantizeError("the activations of the calibration text contain NaN or infinity")
    h = _damped(gram_matrix, damping)
    damped = h.astype(np.float32)
    inverse = np.linalg.inv(h)
    del h
    correction = None if cross is None else _given_way(gram_matrix, cross, inverse)
    diagonal = np.diag(gram_matrix).astype(np.float64)
    diagonal[diagonal <= 0] = 1
    sums = np.repeat(diagonal.reshape(-1, group).sum(axis=1), group)
    groups = np.arange(len(diagonal)) // group
    order = np.lexsort((-diagonal, groups, -sums))
    inverse = inverse[np.ix_(order, order)]
    inverse += inverse.T
    inverse /= 2
    factor = np.ascontiguousarray(np.linalg.cholesky(inverse).T, np.float32)
    return Hessian(order, factor, damped, correction)


def given_way(gram_matrix: Floats, cross: Floats, damping: float = DAMPING) -> Floats:
    """Return C f32 [K, K], by X' X and Y' X: products of W + W C with X are nearest to those of W with Y."""
    return _given_way(gram_matrix, cross, np.linalg.inv(_damped(gram_matrix, damping)))


def _damped(gram_matrix: Floats, damping: float) -> NDArray[np.float64]:
    """Return X' X with damping, and with a one for inputs that were zero throughout."""
    h = gram_matrix.astype(np.float64)
    diagonal = np.diag(h).copy()
    silent = diagonal <= 0
    diagonal[silent] = h[silent, silent] = 1
    h[np.diag_indices_from(h)] += damping * diagonal.mean()
    return h


def _given_way(gram_matrix: Floats, cross: Floats, inverse: NDArray[np.floating]) -> Floats:
    difference = cross.astype(np.float64)
    difference -= gram_matrix
    found: Floats = (difference @ inverse).astype(np.float32)
    return found


def nearest_rows(rows: Floats, scheme: Quantized, scale: Floats | None) -> QuantizedRows:
    """Return rows rounded to nearest, by `scale` if it is given, as `round_rows`. Raises as `quantize_rows`."""
    if isinstance(scheme, Float8):
        return float8_rows(rows, scheme, scale)
    if isinstance(scheme, LookupGroup) and scheme.scales == "e4m3":
        return nvfp4_rows(rows, scheme, scale)
    return quantize_rows(rows, scheme)


def group_of_columns(scheme: Quantized, inputs: int) -> int:
    """Return how many columns share a scale."""
    if isinstance(scheme, Float8):
        return group_of(scheme, inputs)
    return inputs if isinstance(scheme, Int8Channel) else scheme.group_size


def round_rows(rows: Floats, scheme: Quantized, hessian: Hessian, scale: Floats | None = None) -> QuantizedRows:
    """Return f32 rows [rows, K] as codes of `scheme`, by `scale` if it is given: the scales of 8-bit floating point,
    the factors of rows of nvfp4.

    Raises QuantizeError as `quantize_rows` does.
    """
    if hessian.correction is not None:
        rows = rows + rows @ hessian.correction
    inputs = rows.shape[1]
    stored, group = nearest_rows(rows, scheme, scale), group_of_columns(scheme, inputs)
    nearest = nearest_codes(stored, scheme, group)
    scales = np.ascontiguousarray(stored.group_scales.T)
    divisors = np.where(scales == 0, np.float32(1), scales)
    left = np.ascontiguousarray(rows.T[hessian.order])
    codes = np.empty((inputs, rows.shape[0]), np.uint8)
    factor = hessian.factor
    for start in range(0, inputs, BLOCK):
        stop = min(start + BLOCK, inputs)
        errors = np.empty((stop - start, rows.shape[0]), np.float32)
        for index in range(start, stop):
            column = int(hessian.order[index])
            scale_of, divisor = scales[column // group], divisors[column // group]
            code, value = nearest(left[index] / divisor, column)
            codes[column] = code
            error = (left[index] - scale_of * value) / factor[index, index]
            left[index + 1 : stop] -= factor[index, index + 1 : stop, None] * error
            errors[index - start] = error
        left[stop:] -= factor[start:stop, stop:].T @ errors
    return QuantizedRows(np.ascontiguousarray(codes.T), stored.scale, stored.zero, stored.outer)


Nearest = Callable[[Floats, int], tuple[Bytes, Floats]]
"""Codes of a column of weights [N], divided by their scales, and what is to be multiplied by these."""


def nearest_codes(stored: QuantizedRows, scheme: Quantized, group: int) -> Nearest:
    """Return how the weights of a column are rounded, with the zero points or tables of `stored`."""
    if isinstance(scheme, Float8):
        numbers = TYPES[scheme.format]

        def number(scaled: Floats, column: int) -> tuple[Bytes, Floats]:
            codes = numbers.rounded(scaled)
            return codes, numbers.values[codes]

        return number
    if isinstance(scheme, LookupGroup):
        codebook = codebook_of(scheme)
        tables = np.ascontiguousarray(stored.codes[:, ::group].T >> np.uint8(codebook.bits))

        def entry(scaled: Floats, column: int) -> tuple[Bytes, Floats]:
            codes = codebook.nearest(scaled, tables[column // group])
            return codes, codebook.values[codes]

        return entry
    low, high = INT4_ENDS if isinstance(scheme, Int4Group) else INT8_ENDS
    middle = np.float32(8 if isinstance(scheme, Int4Group) else 128)
    zeros = None if stored.zero is None else np.ascontiguousarray(stored.zero.astype(np.float32).T)

    def integer(scaled: Floats, column: int) -> tuple[Bytes, Floats]:
        zero = middle if zeros is None else zeros[column // group]
        codes = np.clip(np.rint(scaled) + zero, low, high)
        return codes.astype(np.uint8), codes - zero

    return integer
