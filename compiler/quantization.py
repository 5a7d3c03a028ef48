"""Rounding to nearest: what `compiler.schemes` describes, as numpy arithmetic.

For a group of weights w of one row, all in f32 (round() goes to nearest, ties to even):

- int4 symmetric: q = clip(round(w / d) + 8, 0, 15) and w is stood for by d (q - 8). d has four significant bits. With
  e the w of largest magnitude and f = e / -8 rounded toward zero to four bits, d is the best of f, the next larger and
  the next smaller such number by the sum of squares of round(64 (w / d - q + 8)), times d^2; the largest of equals; and
  no smaller than 2^-15 of the largest power of two in the row's scales. w is at most 3 |d| away.
- int4 asymmetric: high = max(w, 0), low = min(w, 0); d = f16((high - low) / 15); z = clip(round(-low / d),
  0, 15); q = clip(round(w / d) + z, 0, 15); d (q - z), at most d away.
- int8, one scale a row: d = f32(max |w| / 127); q = clip(round(w / d), -127, 127), stored as q + 128; d q,
  at most d / 2 away.
- int8 in groups: the same with d = f16(max |w| / 127).
- lookup tables: `compiler.lookup`; floating point of 4 bits: `compiler.fp4`; -1, 0 and 1: `compiler.ternary`.
- floating point of 8 bits: d = f32(max |w| / largest), v = nearest(w / d), d v (`compiler.fp8`).

The symmetric rule puts the extreme near -8, so that all 16 codes are used (llama.cpp Q4_0); an equal value of the
other sign loses a step more. Its scale takes a byte (`scale_bytes`), and the best of three such errs about as much as
one of full precision (docs/adr/0009-scales-of-a-byte.md). Errors are rounded to 64ths of a step so that their sums are
exact, in any order, on any machine. The scale is rounded first, and it is the rounded one that divides. A scale above
65504 is an error. One in the subnormal range of f16, below 2^-14, is coarse: there the bounds grow by 16 * 2^-25
(asymmetric int4) or 127 * 2^-25 (int8), and below 2^-25 the group becomes zero; scales of symmetric int4 are 2^-24 at
least.

Groups divide K in int4. In int8 they divide K32, K rounded up to whole blocks of activations, and the inputs
beyond K count as zero. Everything is elementwise f32, so the result depends on nothing but the values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.compiler import fp8
from pyc.compiler.fp4 import Cost, matrix_factor, mxfp4_tile, nvfp4_tile
from pyc.compiler.lookup import codebook_of, lookup_tile
from pyc.compiler.scales import (
    FOUR_BITS,
    LARGEST_SCALE,
    NEXT,
    Bytes,
    Floats,
    divisor,
    exponents,
    extremes,
    half_scale,
    least_exponents,
    refuse_scale,
    require_finite,
)
from pyc.compiler.schemes import Dense, Float8, Int4Group, Int8Channel, Int8Group, LookupGroup, Quantized, Scheme
from pyc.compiler.ternary import ternary_tile
from pyc.runtime.errors import QuantizeError
from pyc.runtime.host.rounding import ceil_div, round_up

GROUP_SIZES = (32, 64, 128)
"""Group sizes that kernels exist for."""

BLOCK = 32
"""Inputs that share an activation scale."""

_OVERFLOW = {"f16": np.float32(65520), "bf16": np.uint32(0x7F7F8000).view(np.float32)}
"""The least magnitude that rounds to infinity."""

_NEIGHBOURS = (NEXT, np.uint32(0), ~NEXT + np.uint32(1))
"""What is added to the bits of a scale for the next larger one, itself and the next smaller one."""

INT4_ENDS = (0, 15)
INT8_ENDS = (1, 255)
"""Codes that a scheme may use; both ends included."""

TILE_ELEMENTS = 1 << 16
"""Weights worked on at once: their f32 temporaries stay in a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows [rows, K] as codes.

    `codes` u8 [rows, K]; `scale` [rows, K / group], f32 (int4) or f16 (asymmetric int4), f16 [rows, K32 / group] (int8
    in groups) or f32 [rows, 1] (int8); of lookup tables as of int4, with codes as in `Codebook.values`; f32 [rows,
    groups] of floating point of 8 bits; `zero` u8 like `scale` for the asymmetric scheme, else None. `outer` f32 [rows,
    1] multiplies the scales of a row where a scheme has row factors (nvfp4, ternary), else None.
    """

    codes: Bytes
    scale: NDArray[np.float16] | Floats
    zero: Bytes | None
    outer: Floats | None = None

    @property
    def group_scales(self) -> Floats:
        """Scales f32 with the factors of rows in them."""
        scale = self.scale.astype(np.float32, copy=False)
        return scale if self.outer is None else scale * self.outer


StoredRows = QuantizedRows | NDArray[np.generic]
"""What a scheme makes of rows: codes, or an array f32, f16 or (bf16) uint16 of the same shape."""


def require_divisible(scheme: Scheme, inputs: int) -> None:
    """Raise QuantizeError unless the groups of `scheme` divide `inputs`; say which scheme would."""
    if not isinstance(scheme, Int4Group | Int8Group | LookupGroup):
        return
    if isinstance(scheme, LookupGroup) and scheme.scales != "short":
        if inputs % BLOCK:
            raise QuantizeError(
                f"in_features={inputs} is not divisible by {BLOCK}, as {scheme.name} needs; choose int8 for this tensor"
            )
        return
    if scheme.group_size not in GROUP_SIZES:
        raise QuantizeError(f"group_size={scheme.group_size} is not supported; choose 32, 64 or 128")
    grouped = round_up(inputs, BLOCK) if isinstance(scheme, Int8Group) else inputs
    if grouped % scheme.group_size == 0:
        return
    workable = [str(size) for size in GROUP_SIZES if grouped % size == 0]
    remedy = f"choose {' or '.join(workable)}" if workable else "choose int8 for this tensor"
    raise QuantizeError(f"in_features={inputs} is not divisible by group_size={scheme.group_size}; {remedy}")


def store_rows(rows: Floats, scheme: Scheme) -> StoredRows:
    """Return f32 `rows` [rows, K] as `scheme` stores them; `Dense.dtype` must be set.

    Raises QuantizeError for NaN, infinity, values outside f16, and groups that do not divide K.
    """
    if isinstance(scheme, Dense):
        return cast_rows(rows, scheme.dtype or "f32")
    return quantize_rows(rows, scheme)


def cast_rows(rows: Floats, dtype: str) -> NDArray[np.generic]:
    """Return f32 `rows` rounded to nearest even as "f32", "f16", or "bf16" (uint16, upper half of the f32).

    Raises QuantizeError for NaN, infinity and values that overflow the type.
    """
    high, low = np.max(rows, initial=0), np.min(rows, initial=0)
    require_finite(high, low)
    if dtype == "f32":
        return rows
    largest = max(high, -low)
    if largest >= _OVERFLOW[dtype]:
        other = "bf16 or f32" if dtype == "f16" else "f32"
        raise QuantizeError(f"a value of magnitude {largest:g} does not fit {dtype}; use {other}")
    if dtype == "f16":
        return rows.astype(np.float16)
    bits = rows.view(np.uint32)
    odd = bits >> 16
    odd &= 1
    odd += np.uint32(0x7FFF)
    odd += bits
    odd >>= 16
    return odd.astype(np.uint16)


def quantize_rows(rows: Floats, scheme: Quantized) -> QuantizedRows:
    """Return f32 `rows` [rows, K] as codes, by the formulas at the head of this module.

    `rows` are a whole matrix, or begin at a block of one, where rows share scales: `Float8` of blocks or tensors.
    Raises QuantizeError for NaN, infinity, a scale beyond f16, and groups that do not divide K.
    """
    count, inputs = rows.shape
    require_divisible(scheme, inputs)
    if isinstance(scheme, Float8):
        return float8_rows(rows, scheme)
    codes = np.empty((count, inputs), np.uint8)
    step = max(1, TILE_ELEMENTS // max(inputs, 1))
    tiles = [slice(start, start + step) for start in range(0, count, step)]
    if isinstance(scheme, Int8Channel):
        row_scale = np.zeros((count, 1), np.float32)
        for tile in tiles:
            _int8_tile(rows[tile], codes[tile], row_scale[tile])
        return QuantizedRows(codes, row_scale, None)
    groups = ceil_div(inputs, scheme.group_size)
    scale = np.zeros((count, groups), np.float16)
    if isinstance(scheme, Int8Group):
        for tile in tiles:
            _int8_group_tile(rows[tile], scheme.group_size, codes[tile], scale[tile])
        return QuantizedRows(codes, scale, None)
    grouped = rows.reshape(count, groups, scheme.group_size)
    out = codes.reshape(count, groups, scheme.group_size)
    if isinstance(scheme, LookupGroup) and scheme.scales == "row":
        factor = np.zeros((count, 1), np.float32)
        for tile in tiles:
            ternary_tile(rows[tile], codes[tile], factor[tile])
        return QuantizedRows(codes, np.ones((count, groups), np.float32), None, factor)
    if isinstance(scheme, LookupGroup) and scheme.scales == "e4m3":
        return nvfp4_rows(rows, scheme)
    if isinstance(scheme, LookupGroup):
        lookup_scale = np.zeros((count, groups), np.float32)
        for tile in tiles:
            if scheme.scales == "e8m0":
                mxfp4_tile(grouped[tile], out[tile], lookup_scale[tile])
            else:
                lookup_tile(grouped[tile], codebook_of(scheme), out[tile], lookup_scale[tile])
        return QuantizedRows(codes, lookup_scale, None)
    if scheme.symmetric:
        short_scale = np.zeros((count, groups), np.float32)
        for tile in tiles:
            _symmetric_tile(grouped[tile], out[tile], short_scale[tile])
        return QuantizedRows(codes, short_scale, None)
    zero = np.zeros((count, groups), np.uint8)
    for tile in tiles:
        _asymmetric_tile(grouped[tile], out[tile], scale[tile], zero[tile])
    return QuantizedRows(codes, scale, zero)


def nvfp4_rows(
    rows: Floats, scheme: LookupGroup, factor: Floats | None = None, cost: Cost | None = None
) -> QuantizedRows:
    """Return f32 `rows` [rows, K] as codes of nvfp4, by `factor` [rows, 1], or that of `rows` as a whole matrix, with
    the scales of least squared error or `cost`."""
    count, inputs = rows.shape
    if factor is None:
        largest = np.maximum(rows.max(initial=0), -rows.min(initial=0))
        require_finite(largest)
        factor = np.full((count, 1), matrix_factor(largest), np.float32)
    groups = inputs // scheme.group_size
    grouped = rows.reshape(count, groups, scheme.group_size)
    codes = np.empty(grouped.shape, np.uint8)
    scale = np.zeros((count, groups), np.float32)
    step = max(1, TILE_ELEMENTS // max(inputs, 1))
    for start in range(0, count, step):
        tile = slice(start, start + step)
        nvfp4_tile(grouped[tile], factor[tile], codes[tile], scale[tile], cost)
    return QuantizedRows(codes.reshape(count, inputs), scale, None, factor)


def float8_rows(rows: Floats, scheme: Float8, scales: Floats | None = None) -> QuantizedRows:
    """Return f32 `rows` [rows, K] as codes, by their own scales or by `scales` [rows, groups], which saturates."""
    largest = fp8.largest_magnitudes(rows, scheme)
    require_finite(largest)
    scale = fp8.scales_of(largest, scheme) if scales is None else scales
    codes = np.empty(rows.shape, np.uint8)
    step = max(1, TILE_ELEMENTS // max(rows.shape[1], 1))
    for start in range(0, len(rows), step):
        tile = slice(start, start + step)
        codes[tile] = fp8.codes_of(rows[tile], scale[tile], scheme)
    return QuantizedRows(codes, scale, None)


def dequantize_rows(stored: QuantizedRows, scheme: Quantized) -> Floats:
    """Return the f32 values [rows, K] that codes of `scheme` stand for."""
    if isinstance(scheme, Float8):
        return fp8.values_of(stored.codes, stored.scale.astype(np.float32), scheme)
    inputs = stored.codes.shape[1]
    group = inputs if isinstance(scheme, Int8Channel) else scheme.group_size
    if isinstance(scheme, LookupGroup):
        found: Floats = codebook_of(scheme).values[stored.codes]
        return found * np.repeat(stored.group_scales, group, axis=1)
    values = stored.codes.astype(np.float32)
    if stored.zero is not None:
        values -= np.repeat(stored.zero, group, axis=1)[:, :inputs]
    else:
        values -= 8 if isinstance(scheme, Int4Group) else 128
    values *= np.repeat(stored.scale.astype(np.float32), group, axis=1)[:, :inputs]
    return values


def _round_codes(grouped: Floats, scale: Floats, offset: Floats | float, ends: tuple[int, int], out: Bytes) -> None:
    """Write clip(round(grouped / scale) + offset, *ends) to `out`; `scale` broadcasts over the last axis."""
    work = np.divide(grouped, divisor(scale)[..., None])
    np.rint(work, out=work)
    work += offset
    np.clip(work, *ends, out=work)
    np.copyto(out, work, casting="unsafe")


def _symmetric_tile(grouped: Floats, codes: Bytes, scale: Floats) -> None:
    """Quantize [rows, groups, group] symmetrically into `codes` and `scale`."""
    high, low = extremes(grouped)
    wanted = np.where(high >= -low, high, low)
    wanted /= np.float32(-8)
    if np.abs(wanted).max(initial=0) > LARGEST_SCALE:
        refuse_scale(wanted)
    bits = _best_of_three(grouped, wanted.view(np.uint32) & FOUR_BITS)
    least = least_exponents(bits)
    scale.view(np.uint32)[...] = np.where(exponents(bits) < least, least << np.uint32(23), bits)
    _round_codes(grouped, scale, 8, INT4_ENDS, codes)


def _best_of_three(grouped: Floats, middle: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the bits of the scales with the least errors among `middle` [rows, groups] and their neighbours."""
    searched = np.abs(middle.view(np.float32)) >= 2.0**-24
    best, least = middle, np.full(middle.shape, np.inf, np.float32)
    for step in _NEIGHBOURS:
        bits = np.where(searched, middle + step, middle)
        scale = bits.view(np.float32)
        scaled = grouped / divisor(scale)[..., None]
        error = np.rint((scaled - np.clip(np.rint(scaled), -8, 7)) * np.float32(64))
        cost = np.einsum("rgi,rgi->rg", error, error) * (scale * scale)
        best = np.where(cost < least, bits, best)
        least = np.minimum(cost, least)
    return best


def _asymmetric_tile(grouped: Floats, codes: Bytes, scale: NDArray[np.float16], zero: Bytes) -> None:
    """Quantize [rows, groups, group] asymmetrically into `codes`, `scale` and `zero`."""
    high, low = extremes(grouped)
    high, low = np.maximum(high, np.float32(0)), np.minimum(low, np.float32(0))
    # Each end is divided first: high - low could overflow where the scale does not.
    rounded = half_scale((high / 15 - low / 15).astype(np.float32, copy=False), scale)
    zeros = np.clip(np.rint(-low / divisor(rounded)), 0, 15)
    zero[...] = zeros
    _round_codes(grouped, rounded, zeros[..., None], INT4_ENDS, codes)


def _int8_tile(rows: Floats, codes: Bytes, scale: Floats) -> None:
    """Quantize [rows, K] into `codes` (q + 128) and `scale` [rows, 1]."""
    high, low = rows.max(axis=1, initial=0), rows.min(axis=1, initial=0)
    require_finite(high, low)
    scale[:, 0] = np.maximum(high, -low) / np.float32(127)
    _round_codes(rows[:, None, :], scale, 128, INT8_ENDS, codes[:, None, :])


def _int8_group_tile(rows: Floats, group: int, codes: Bytes, scale: NDArray[np.float16]) -> None:
    """Quantize [rows, K] into `codes` (q + 128) and `scale` [rows, groups]; the last group may be short."""
    count, inputs = rows.shape
    groups = scale.shape[1]
    if inputs < groups * group:
        rows = np.pad(rows, ((0, 0), (0, groups * group - inputs)))
    grouped = rows.reshape(count, groups, group)
    high, low = extremes(grouped)
    largest = np.maximum(high, -low)
    rounded = half_scale((largest / 127).astype(np.float32, copy=False), scale)
    out = np.empty(grouped.shape, np.uint8)
    _round_codes(grouped, rounded, 128, INT8_ENDS, out)
    codes[...] = out.reshape(count, -1)[:, :inputs]
