"""Activations as MXFP8: floating point of 8 bits, with a power of two for each block of 32 (OCP MX specification 1.0).

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

from pyc.compiler.fp8 import TYPES

Floats = NDArray[np.floating]

MXFP8_BLOCK = 32
"""Inputs that share a power of two."""
LEAST_EXPONENT = -116
"""Of the power of two of a block."""
_E4M3 = TYPES["e4m3"]
_LARGEST_FRACTION, _LARGEST_EXPONENT = (part.item() for part in np.frexp(_E4M3.largest))


def mxfp8_rounded(x: Floats) -> Floats:
    """Return rows [T, K] of f32 or f64 rounded to MXFP8 by blocks of 32 features, in the same dtype.

    f64 is rounded to f32 on the way, which kernels read.
    """
    padding = -x.shape[1] % MXFP8_BLOCK
    blocks = np.pad(x, ((0, 0), (0, padding))).reshape(len(x), -1, MXFP8_BLOCK)
    largest = np.abs(blocks).max(-1, keepdims=True)
    is_fault = ~np.isfinite(largest)
    fraction, exponent = np.frexp(np.where(is_fault, 0, largest))
    power = np.maximum(exponent - _LARGEST_EXPONENT + (fraction > _LARGEST_FRACTION), LEAST_EXPONENT)
    codes = _E4M3.rounded(np.ldexp(np.where(is_fault, 0, blocks), -power).astype(np.float32))
    rounded = np.ldexp(_E4M3.values[codes].astype(x.dtype), power)
    made = np.where(is_fault, np.nan, rounded).reshape(len(x), -1)[:, : x.shape[1]]
    return cast("Floats", made.astype(x.dtype, copy=False))
