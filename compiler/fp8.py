"""Floating point of 8 bits (FP8, arXiv:2209.05433): its values, and rounding to them.

A code is a sign, an exponent e and a fraction f, from the top bit. With a bias b and m bits of fraction it stands for

    e > 0:  +- 2^(e - b) (1 + f / 2^m)
    e = 0:  +- 2^(1 - b) f / 2^m

- e4m3: four bits of exponent, b = 7, m = 3; from 2^-9 to 448. The codes 0x7f and 0xff are NaN ("e4m3fn": no infinity).
- e5m2: five bits, b = 15, m = 2; from 2^-16 to 57344. From 0x7c and 0xfc on, codes are infinity and NaN.

A weight w is stood for by d v, d one f32 scale for its row, for the matrix, or for its block of 128 x 128: d = f32(max
|w| / largest), largest being 448 or 57344, and v is w / d in f32, saturated at the largest and rounded to nearest, ties
to even codes. d v is at most half a step of its power of two away from w, d 2^(e - b - m - 1): 1/16 of |w| for e4m3 and
1/8 for e5m2, or d 2^-10 and d 2^-17 where w is as small as that. No code is NaN or infinity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.schemes import Float8, Float8Format
from pyc.runtime.host.made_once import made_once
from pyc.runtime.host.rounding import ceil_div, round_up

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BLOCK_SIDE = 128
"""Rows, and inputs, of a block that has one scale."""


@dataclass(frozen=True)
class Float8Type:
    """A format: bits of the exponent and of the fraction, and the largest code that is a number."""

    exponent_bits: int
    fraction_bits: int
    largest_code: int

    @property
    def bias(self) -> int:
        """What an exponent is less by than its code."""
        return (1 << self.exponent_bits - 1) - 1

    @made_once
    def values(self) -> Floats:
        """The numbers f32 [256] that codes stand for; NaN for those that none has."""
        codes = np.arange(256)
        magnitude = codes & 0x7F
        exponent, fraction = magnitude >> self.fraction_bits, magnitude & (1 << self.fraction_bits) - 1
        whole = np.where(exponent > 0, 1 << self.fraction_bits, 0) + fraction
        found = np.ldexp(whole.astype(np.float32), np.maximum(exponent, 1) - self.bias - self.fraction_bits)
        found[magnitude > self.largest_code] = np.nan
        signed: Floats = np.where(codes > 0x7F, -found, found).astype(np.float32)
        return signed

    @property
    def largest(self) -> np.float32:
        """The largest number."""
        return np.float32(self.values[self.largest_code])

    def rounded(self, values: Floats) -> Bytes:
        """Return the codes of the numbers nearest to f32 `values`, which are finite; ties go to even codes."""
        magnitude = np.minimum(np.abs(values), self.largest)
        steps = np.rint(magnitude * np.float32(2.0 ** (self.bias - 1 + self.fraction_bits)))  # of the smallest numbers
        is_small = magnitude < np.float32(2.0 ** (1 - self.bias))
        shift = np.uint32(23 - self.fraction_bits)
        bits = magnitude.view(np.uint32)
        bits += (bits >> shift & np.uint32(1)) + np.uint32((1 << int(shift) - 1) - 1)
        bits >>= shift
        bits -= np.uint32(127 - self.bias << self.fraction_bits)
        codes = np.where(is_small, steps.astype(np.uint32), bits).astype(np.uint8)
        codes |= np.signbit(values).astype(np.uint8) << np.uint8(7)
        return codes


TYPES: dict[Float8Format, Float8Type] = {"e4m3": Float8Type(4, 3, 0x7E), "e5m2": Float8Type(5, 2, 0x7B)}


def group_of(scheme: Float8, inputs: int) -> int:
    """Return how many consecutive inputs of a row share a scale."""
    return BLOCK_SIDE if scheme.scaling == "block" else max(inputs, 1)


def scale_rows(scheme: Float8) -> int:
    """Return how many consecutive rows of a matrix share a scale; 0: all of them."""
    return {"row": 1, "block": BLOCK_SIDE, "tensor": 0}[scheme.scaling]


def scales_of(largest: Floats, scheme: Float8) -> Floats:
    """Return the scales for the largest magnitudes of what they are the scales of."""
    scales: Floats = largest / TYPES[scheme.format].largest
    return scales


def largest_magnitudes(rows: Floats, scheme: Float8) -> Floats:
    """Return the largest magnitude [rows, groups] among the weights that share a scale, which a block's first row is
    at the top of `rows`. NaN and infinity propagate."""
    count, inputs = rows.shape
    group = group_of(scheme, inputs)
    groups = max(ceil_div(inputs, group), 1)
    found = np.zeros((count, groups), np.float32)
    for index in range(groups):
        part = rows[:, index * group : (index + 1) * group]
        found[:, index] = np.maximum(part.max(axis=1, initial=0), -part.min(axis=1, initial=0))
    together = scale_rows(scheme) or max(count, 1)
    if together > 1 and count:
        padded = np.zeros((round_up(count, together), groups), np.float32)
        padded[:count] = found
        by_block = padded.reshape(-1, together, groups).max(axis=1)
        found = np.repeat(by_block, together, axis=0)[:count]
    return found


def codes_of(rows: Floats, scales: Floats, scheme: Float8) -> Bytes:
    """Return the codes of rows [rows, K] by their `scales` [rows, groups]. A scale of 0 is one of zeros."""
    divisor = spread(np.where(scales == 0, np.float32(1), scales), scheme, rows.shape[1])
    with np.errstate(over="ignore"):
        return TYPES[scheme.format].rounded(rows / divisor)


def values_of(codes: Bytes, scales: Floats, scheme: Float8) -> Floats:
    """Return the f32 values [rows, K] that codes and their scales [rows, groups] stand for."""
    found: Floats = TYPES[scheme.format].values[codes]
    found *= spread(scales, scheme, codes.shape[1])
    return found


def spread(scales: Floats, scheme: Float8, inputs: int) -> Floats:
    """Return scales [rows, groups] as [rows, K], or [rows, 1] where a row has one."""
    if scales.shape[1] == 1:
        return scales
    return np.repeat(scales, group_of(scheme, inputs), axis=1)[:, :inputs]
