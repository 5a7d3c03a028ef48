"""GPTQ group by group: a group's scale is chosen when its turn comes, by what the matrix's products lose with it.

`compiler.gptq` rounds by scales of the weights as they were. By the time that a group is rounded, its weights have
taken over what the groups before have lost, and other scales suit them. Here columns of a group follow one another
(`gptq.prepare` with `group`). For any scale, the sum of (error / U_ii)^2 over a group is what the products lose by
it if the columns that are left make up for it as well as they can. The scales, zero points and tables of
`scale_search` are tried: first to nearest with the errors weighted by 1 / U_ii^2, then the FINALISTS of least cost with
feedback within the group; the best is taken.

A scale of a byte stays within the binades that a row's scales by nearest rounding begin (`scales.scale_bytes`).
"""

from __future__ import annotations

import numpy as np

from pyc.compiler.gptq import Hessian
from pyc.compiler.quantization import QuantizedRows, quantize_rows
from pyc.compiler.scale_search import placed, tried_scales
from pyc.compiler.scales import INT4_BINADES, LOOKUP_BINADES, Bytes, Floats, exponents, least_exponents
from pyc.compiler.schemes import Int4Group, LookupGroup, Quantized

FINALISTS = 4
"""Of all scales that are tried, those that are rounded with feedback. All of them would lose a hundredth less."""


def is_grouped(scheme: Quantized) -> bool:
    """Whether the scales of a scheme are searched here: those of int4 and of lookup tables with scales of their own."""
    return isinstance(scheme, Int4Group) or (isinstance(scheme, LookupGroup) and scheme.scales == "short")


def round_groups(rows: Floats, scheme: Quantized, hessian: Hessian) -> QuantizedRows:
    """Return f32 rows [N, K] as codes of `scheme`, which `is_grouped`; `hessian` is prepared for its groups.

    Raises QuantizeError as `quantize_rows` does.
    """
    assert isinstance(scheme, Int4Group | LookupGroup)
    if hessian.correction is not None:
        rows = rows + rows @ hessian.correction
    count, inputs = rows.shape
    size = scheme.group_size
    limits = _Limits(rows, scheme)
    left = np.ascontiguousarray(rows.T[hessian.order])
    codes = np.empty((inputs, count), np.uint8)
    scales, zeros = (np.empty((inputs // size, count), np.float32) for _ in range(2))
    for start in range(0, inputs, size):
        own = slice(start, start + size)
        columns, factor = hessian.order[own], hessian.factor[own, own]
        weights: Floats = np.square(np.diag(factor)) ** -1
        tried = _finalists(left[own], scheme, weights, limits)
        found, errors = _fed_back(left[own], *tried, factor, scheme)
        best = np.square(errors).sum(axis=1).argmin(axis=0)
        rows_of = np.arange(count)
        codes[columns] = found[best, :, rows_of].T
        scales[columns[0] // size], zeros[columns[0] // size] = (each[best, rows_of] for each in tried)
        left[own.stop :] -= hessian.factor[own, own.stop :].T @ errors[best, :, rows_of].T
    scale, zero = np.ascontiguousarray(scales.T), None
    if isinstance(scheme, Int4Group) and not scheme.symmetric:
        return QuantizedRows(np.ascontiguousarray(codes.T), scale.astype(np.float16), zeros.T.astype(np.uint8))
    return QuantizedRows(np.ascontiguousarray(codes.T), scale, zero)


class _Limits:
    """The exponents that scales of a byte may have in each row; f16 has no limits here."""

    def __init__(self, rows: Floats, scheme: Int4Group | LookupGroup) -> None:
        self._least = None
        if isinstance(scheme, LookupGroup) or scheme.symmetric:
            binades = LOOKUP_BINADES if isinstance(scheme, LookupGroup) else INT4_BINADES
            self._least = least_exponents(quantize_rows(rows, scheme).group_scales.view(np.uint32), binades)
            self._most = self._least + np.uint32(binades)

    def kept(self, scale: Floats) -> Floats:
        """Return scales [rows, 1] with the nearest exponent that is allowed, where theirs is not."""
        if self._least is None:
            return scale
        bits = scale.view(np.uint32)
        sign, own = bits & np.uint32(1 << 31), exponents(bits)
        bits = np.where(own < self._least, sign | self._least << np.uint32(23), bits)
        bits = np.where(own > self._most, sign | self._most << np.uint32(23) | np.uint32(7 << 20), bits)
        return bits.view(np.float32)


def _finalists(left: Floats, scheme: Quantized, weights: Floats, limits: _Limits) -> tuple[Floats, Floats]:
    """Return scales and zero points, or tables, [FINALISTS, rows] of a group's weights [group, rows]."""
    grouped = np.ascontiguousarray(left.T)[:, None, :]
    scales, zeros, costs = [], [], []
    for tried, zero in tried_scales(grouped, scheme):
        scale = limits.kept(tried)
        _, values = placed(grouped, scale, zero, scheme)
        scales.append(scale[:, 0])
        zeros.append(zero[:, 0])
        costs.append(np.square(grouped - values)[:, 0] @ weights)
    first = np.argsort(np.stack(costs), axis=0, kind="stable")[:FINALISTS]
    return np.take_along_axis(np.stack(scales), first, 0), np.take_along_axis(np.stack(zeros), first, 0)


def _fed_back(
    left: Floats, scale: Floats, zero: Floats, factor: Floats, scheme: Quantized
) -> tuple[Bytes, Floats]:
    """Return codes and errors / U_ii, each [scales, group, rows], of weights [group, rows] by scales [scales, rows]."""
    moved = np.repeat(left[None], len(scale), axis=0)
    codes, errors = np.empty(moved.shape, np.uint8), np.empty_like(moved)
    for index in range(len(left)):
        code, value = placed(moved[:, index, :, None], scale, zero, scheme)
        codes[:, index] = code[..., 0]
        error = (moved[:, index] - value[..., 0]) / factor[index, index]
        errors[:, index] = error
        moved[:, index + 1 :] -= factor[index, index + 1 :, None] * error[:, None]
    return codes, errors
