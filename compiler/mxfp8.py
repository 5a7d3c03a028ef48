"""Activations as floating point of 8 bits, with a power of two for each block: MXFP8 (OCP MX specification 1.0), whose
blocks are 32 inputs, and fp8 rows, where a block is a whole row.

    2^e: the least power of two, at least 2^-116, with max |x| <= 448 * 2^e in the block
    x becomes 2^e * v, v the number of e4m3 that is nearest to x / 2^e, ties to even

A rounded number has four significant bits and is zero or at least 2^-125: bf16 and f32 hold it exactly, and it does not
matter whether a device has subnormal numbers. It errs by at most 2^-4 |x|, or where that is more by 2^(e - 10), 2^-17
of the block's largest. A block with NaN or infinity becomes NaN; above 1.9375 * 2^127 a number becomes infinity. The
specification's e goes down to -127, and its conversion cuts the largest of a block by as much as an eighth, where it
lies above 448 * 2^e; here nothing is cut.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

MXFP8_BLOCK = 32
"""Inputs that share a power of two."""
LEAST_EXPONENT = -116
"""Of the power of two of a block."""
_LARGEST = 448 / 512
"""The largest number of e4m3 as a fraction of the power of two above it."""
_POWER_ABOVE = 9
"""That power's exponent."""
_LEAST_NORMAL = -6
"""The exponent of the least normal number of e4m3."""
_FRACTION_BITS = 3


def mxfp8_rounded(x: Floats) -> Floats:
    """Return rows [T, K] of f32 or f64 rounded to MXFP8 by blocks of 32 features, in the same dtype."""
    padding = -x.shape[1] % MXFP8_BLOCK
    blocks = np.pad(x, ((0, 0), (0, padding))).reshape(len(x), -1, MXFP8_BLOCK)
    return _rounded(blocks).reshape(len(x), -1)[:, : x.shape[1]]


def float8_rows_rounded(x: Floats) -> Floats:
    """Return rows [T, K] of f32 or f64 rounded to e4m3 with a power of two for each row, in the same dtype."""
    return _rounded(x)


def _rounded(blocks: Floats) -> Floats:
    """Return blocks [..., inputs that share a power of two] rounded, in the same dtype."""
    largest = np.abs(blocks).max(-1, keepdims=True)
    is_fault = ~np.isfinite(largest)
    fraction, exponent = np.frexp(np.where(is_fault, 0, largest))
    power = np.maximum(exponent - _POWER_ABOVE + (fraction > _LARGEST), LEAST_EXPONENT)
    scaled = np.ldexp(np.where(is_fault, 0, blocks), -power)
    step = np.maximum(np.frexp(scaled)[1] - 1, _LEAST_NORMAL) - _FRACTION_BITS
    rounded = np.ldexp(np.rint(np.ldexp(scaled, -step)), step + power)
    return cast("Floats", np.where(is_fault, np.nan, rounded).astype(blocks.dtype, copy=False))
