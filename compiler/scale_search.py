"""Rounding to nearest with scales that are searched for what a text makes of errors.

A group of weights w of one row, rounded to q by a scale d, costs e' M e, e = w - d q. M is the metric of the group's
inputs: the diagonal of their mean squares (importance-weighted rounding, as llama.cpp's imatrix has it), or the mean of
x x', so that the cost is the squared error of the group's products (the clipping search of AWQ, arXiv:2306.00978). Of
all scales that are tried the first with the least cost is taken, and q is nearest to w / d.

Tried are, with e the w of largest magnitude and steps of an eighth of a binade: int4 symmetric, the numbers of four
significant bits at INT4_STEPS from e / -8 and from e / 7; lookup tables, those at LOOKUP_STEPS beside the table's own
from e / E, for each table and both of its ends E; the others, the scale of `quantization` times each of SHRINK, where
the zero point is the one that goes with it; floating point of 4 bits, what `fp4` tries. Scales of floating point of 8
bits and of ternary weights are not searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.fp4 import mxfp4_tile
from pyc.compiler.lookup import codebook_of
from pyc.compiler.quantization import (
    INT4_ENDS,
    INT8_ENDS,
    TILE_ELEMENTS,
    QuantizedRows,
    float8_rows,
    nvfp4_rows,
    quantize_rows,
    require_divisible,
)
from pyc.compiler.scales import (
    FOUR_BITS,
    INT4_BINADES,
    LARGEST_SCALE,
    LOOKUP_BINADES,
    NEXT,
    Bytes,
    Floats,
    divisor,
    exponents,
    extremes,
    half_scale,
    least_exponents,
    refuse_scale,
)
from pyc.compiler.schemes import Float8, Int4Group, Int8Channel, LookupGroup, Quantized
from pyc.runtime.errors import QuantizeError
from pyc.runtime.host.rounding import ceil_div

INT4_STEPS = (0, -1, 1, -2, 2, -3, -4)
LOOKUP_STEPS = (-3, -2, -1, 0, 1, 2)
SHRINK = tuple(1 - index / 20 for index in range(10))
"""Of AWQ's published search."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What errors of a matrix's columns cost: `diagonal` f32 [K], or blocks f32 [groups, group, group] of a scheme."""

    diagonal: Floats | None = None
    blocks: Floats | None = None

    def cost(self, errors: Floats) -> Floats:
        """Return the cost [rows, groups] of errors [rows, groups, group]."""
        if self.blocks is None:
            assert self.diagonal is not None
            weights = self.diagonal.reshape(errors.shape[1:])
            found: Floats = np.einsum("rgi,rgi,gi->rg", errors, errors, weights)
            return found
        by_group = errors.swapaxes(0, 1)
        costs: Floats = np.einsum("gri,gri->rg", by_group @ self.blocks, by_group)
        return costs


def importance(gram_matrix: Floats, scheme: Quantized) -> Metric:
    """Return the metric of mean squared inputs, by X' X [K, K] or its diagonal. Raises as `products`."""
    diagonal = gram_matrix if gram_matrix.ndim == 1 else np.diag(gram_matrix)
    _require_finite(diagonal)
    return Metric(diagonal=_padded(_heard(diagonal), scheme))


def products(gram_matrix: Floats, scheme: Quantized) -> Metric:
    """Return the metric of the squared error of products, by X' X [K, K]. Raises QuantizeError unless it is finite.

    Columns that were zero throughout count a little, so that their weights are rounded to something.
    """
    _require_finite(gram_matrix)
    inputs = len(gram_matrix)
    group = _group_size(scheme, inputs)
    groups = ceil_div(inputs, group)
    whole = np.zeros((groups * group, groups * group), np.float32)
    whole[:inputs, :inputs] = gram_matrix
    blocks = np.stack([whole[g * group : (g + 1) * group, g * group : (g + 1) * group] for g in range(groups)])
    mean = float(np.diag(gram_matrix).mean()) or 1.0
    blocks += np.eye(group, dtype=np.float32) * np.float32(_LEAST * mean)
    return Metric(blocks=blocks)


def search_rows(rows: Floats, scheme: Quantized, metric: Metric, scale: Floats | None = None) -> QuantizedRows:
    """Return f32 rows [rows, K] as codes of `scheme`, by `scale` if it is given, as `gptq.round_rows`.

    Raises QuantizeError as `quantize_rows` does.
    """
    count, inputs = rows.shape
    require_divisible(scheme, inputs)
    if isinstance(scheme, Float8):
        return float8_rows(rows, scheme, scale)
    if isinstance(scheme, LookupGroup) and scheme.scales == "e4m3":
        return nvfp4_rows(rows, scheme, scale, metric.cost)
    if isinstance(scheme, LookupGroup) and scheme.scales == "e8m0":
        return _mxfp4_rows(rows, scheme, metric)
    if isinstance(scheme, LookupGroup) and scheme.scales == "row":
        return quantize_rows(rows, scheme)
    step = max(1, TILE_ELEMENTS // max(inputs, 1))
    tiles = [_searched(rows[start : start + step], scheme, metric) for start in range(0, count, step)]
    zeros = [tile.zero for tile in tiles if tile.zero is not None]
    return QuantizedRows(
        np.concatenate([tile.codes for tile in tiles]),
        np.concatenate([tile.scale for tile in tiles]),
        np.concatenate(zeros) if zeros else None,
    )


def _mxfp4_rows(rows: Floats, scheme: LookupGroup, metric: Metric) -> QuantizedRows:
    grouped = rows.reshape(len(rows), -1, scheme.group_size)
    codes, scale = np.empty(grouped.shape, np.uint8), np.empty(grouped.shape[:2], np.float32)
    step = max(1, TILE_ELEMENTS // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        tile = slice(start, start + step)
        mxfp4_tile(grouped[tile], codes[tile], scale[tile], metric.cost)
    return QuantizedRows(codes.reshape(rows.shape), scale, None)


_LEAST = 1e-4
"""Of the mean square of inputs: no column counts less."""


def _require_finite(values: Floats) -> None:
    if not np.isfinite(values).all():
        raise QuantizeError("the activations of the calibration text contain NaN or infinity")


def _heard(diagonal: Floats) -> Floats:
    mean = float(diagonal.mean()) or 1.0
    return np.divide(np.maximum(diagonal, np.float32(_LEAST * mean)), np.float32(mean), dtype=np.float32)


def _group_size(scheme: Quantized, inputs: int) -> int:
    return inputs if isinstance(scheme, Int8Channel | Float8) else scheme.group_size


def _padded(diagonal: Floats, scheme: Quantized) -> Floats:
    group = _group_size(scheme, len(diagonal))
    return np.pad(diagonal, (0, -len(diagonal) % group))


def _searched(rows: Floats, scheme: Quantized, metric: Metric) -> QuantizedRows:
    count, inputs = rows.shape
    group = _group_size(scheme, inputs)
    grouped = np.pad(rows, ((0, 0), (0, -inputs % group))).reshape(count, -1, group)
    scale, zero, least = None, None, None
    for tried_scale, tried_zero in tried_scales(grouped, scheme):
        _, values = placed(grouped, tried_scale, tried_zero, scheme)
        cost = metric.cost(grouped - values)
        if scale is None or zero is None or least is None:
            scale, zero, least = tried_scale.copy(), tried_zero.copy(), cost
            continue
        better = cost < least
        scale, zero, least = (
            np.where(better, new, old)
            for new, old in ((tried_scale, scale), (tried_zero, zero), (cost, least))
        )
    assert scale is not None and zero is not None
    if isinstance(scheme, LookupGroup) or (isinstance(scheme, Int4Group) and scheme.symmetric):
        scale = _in_a_byte(scale, LOOKUP_BINADES if isinstance(scheme, LookupGroup) else INT4_BINADES)
    codes, _ = placed(grouped, scale, zero, scheme)
    codes = np.ascontiguousarray(codes.reshape(count, -1)[:, :inputs])
    if isinstance(scheme, Int4Group) and not scheme.symmetric:
        return QuantizedRows(codes, scale.astype(np.float16), zero.astype(np.uint8))
    is_half = not isinstance(scheme, Int8Channel | Int4Group | LookupGroup)
    return QuantizedRows(codes, scale.astype(np.float16) if is_half else scale, None)


def _in_a_byte(scale: Floats, binades: int) -> Floats:
    """Raise scales that are too small beside their row's largest for a byte."""
    bits = scale.view(np.uint32)
    least = least_exponents(bits, binades)
    return np.where(exponents(bits) < least, least << np.uint32(23), bits).view(np.float32)


def tried_scales(grouped: Floats, scheme: Quantized) -> Iterator[tuple[Floats, Floats]]:
    """Yield what is tried for groups [rows, groups, group]: scales and zero points, or tables, f32 [rows, groups]."""
    high, low = extremes(grouped)
    largest = np.where(high >= -low, high, low)
    if isinstance(scheme, Int4Group) and not scheme.symmetric:
        high, low = np.maximum(high, np.float32(0)), np.minimum(low, np.float32(0))
        for factor in SHRINK:
            wanted = ((high / 15 - low / 15) * np.float32(factor)).astype(np.float32, copy=False)
            rounded = half_scale(wanted, np.empty(wanted.shape, np.float16))
            yield rounded, np.clip(np.rint(-low * np.float32(factor) / divisor(rounded)), 0, 15)
        return
    if isinstance(scheme, Int4Group):
        eight = np.full(largest.shape, 8, np.float32)
        for end in (-8, 7):
            for scale in _short_scales(largest, end, INT4_STEPS):
                yield scale, eight
        return
    if isinstance(scheme, LookupGroup):
        codebook = codebook_of(scheme)
        steps = (*codebook.steps, *(step for step in LOOKUP_STEPS if step not in codebook.steps))
        for table, entries in enumerate(codebook.tables):
            for end in (entries[0], entries[-1]):
                for scale in _short_scales(largest, end, steps):
                    yield scale, np.full(largest.shape, table, np.float32)
        return
    wanted = (np.abs(largest) / np.float32(127)).astype(np.float32, copy=False)
    middle = np.full(largest.shape, 128, np.float32)
    for factor in SHRINK:
        shrunk = (wanted * np.float32(factor)).astype(np.float32, copy=False)
        is_row = isinstance(scheme, Int8Channel)
        yield shrunk if is_row else half_scale(shrunk, np.empty(shrunk.shape, np.float16)), middle


def _short_scales(largest: Floats, end: int, steps: tuple[int, ...]) -> Iterator[Floats]:
    """Yield numbers of four significant bits at so many steps from those that map the largest onto an end."""
    wanted = (largest / np.float32(end)).astype(np.float32, copy=False)
    if np.abs(wanted).max(initial=0) > LARGEST_SCALE:
        refuse_scale(wanted)
    middle = wanted.view(np.uint32) & FOUR_BITS
    searched = np.abs(wanted) >= 2.0**-23
    for step in steps:
        bits: NDArray[np.uint32] = np.where(searched, middle + np.uint32(step * int(NEXT) & 0xFFFFFFFF), middle)
        yield bits.view(np.float32)


def placed(grouped: Floats, scale: Floats, zero: Floats, scheme: Quantized) -> tuple[Bytes, Floats]:
    """Return codes of groups [..., group] by their scales and zero points or tables [...], and what they stand for."""
    scaled = grouped / divisor(scale)[..., None]
    if isinstance(scheme, LookupGroup):
        codebook = codebook_of(scheme)
        codes = codebook.nearest(scaled, zero.astype(np.uint8)[..., None])
        return codes, codebook.values[codes] * scale[..., None]
    ends = INT4_ENDS if isinstance(scheme, Int4Group) else INT8_ENDS
    found = np.clip(np.rint(scaled) + zero[..., None], *ends)
    return found.astype(np.uint8), (found - zero[..., None]) * scale[..., None]
