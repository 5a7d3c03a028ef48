"""Floating point of 4 bits, e2m1, with scales for small groups of a row (OCP Microscaling Formats 1.0; NVFP4).

A code is a sign, two bits e of exponent and one f of fraction, from the top: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
negatives. A weight w of a group is stood for by d v, v the number nearest to w / d (between two, the larger), and d is

    mxfp4: 2^e for 32 inputs, e in [-100, 125], stored as the byte e + 127 (e8m0)
    nvfp4: s t for 16 inputs, s a positive number of e4m3, t = f32(max |w| of the matrix / 2688), and 1 for zeros

2688 is 6 * 448, the largest v and s. Of the scales near the one that maps the largest magnitude of a group onto 6, the
first with the least d^2 times the sum of squares of round(64 (w / d - v)) is taken, as in `compiler.lookup`: for mxfp4
2^(floor(log2 max |w|) - 2), which the specification has, the next smaller and the next larger; for nvfp4 that number of
e4m3, two smaller ones and six larger: codes are few, and mapping the largest onto 4 often pays. The error of a weight
is at most d where it is not beyond 6 d, and such d are among those tried, so the mean over a group is not larger.

In code the numbers of e2m1 are twice as large (`codebooks`), and scales half: `QuantizedRows.scale` is 2^(e - 1), or s
with `outer` t / 2. A byte of e8m0 stands for 2^(byte - 127), 255 for NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.fp8 import TYPES
from pyc.compiler.scales import Bytes, Floats, divisor, extremes

E2M1 = CODEBOOKS["e2m1"]
E4M3 = TYPES["e4m3"]

LARGEST = 6
E8M0_BIAS = 127
_LEAST_EXPONENT, _MOST_EXPONENT = -100, 125
_PARTS = 64
"""Errors are compared in 64ths of a scale: the sums of their squares are exact, in any order."""

_MX_STEPS = (0, -1, 1)
_NV_STEPS = (0, -2, -1, 1, 2, 3, 4, 5, 6)


Cost = Callable[[Floats], Floats]
"""Says what errors f32 [rows, groups, group] cost, [rows, groups]."""


def mxfp4_tile(grouped: Floats, codes: Bytes, scale: Floats, cost: Cost | None = None) -> None:
    """Quantize `grouped` [rows, groups, 32] into `codes` and `scale` [rows, groups], with the scales of least `cost`.

    Raises QuantizeError for what is not finite.
    """
    largest = _largest(grouped)
    middle = np.frexp(largest)[1] - 3  # floor(log2) is one less than frexp's exponent
    tried = [np.ldexp(np.float32(0.5), np.clip(middle + step, _LEAST_EXPONENT, _MOST_EXPONENT)) for step in _MX_STEPS]
    scale[...] = _best(grouped, tried, tried, cost)
    codes[...] = E2M1.nearest(grouped / scale[..., None], 0)


def nvfp4_tile(grouped: Floats, factor: Floats, codes: Bytes, scale: Floats, cost: Cost | None = None) -> None:
    """Quantize `grouped` [rows, groups, 16] by `factor` [rows, 1] into `codes` and `scale` [rows, groups], numbers of
    e4m3, with those of least `cost`. Raises QuantizeError for what is not finite."""
    largest = _largest(grouped)
    middle = E4M3.rounded(largest / (factor * np.float32(2 * LARGEST))).astype(np.int32)
    tried = [E4M3.values[np.clip(middle + step, 1, E4M3.largest_code)] for step in _NV_STEPS]
    outer = np.broadcast_to(factor, largest.shape)
    scale[...] = _best(grouped, [each * outer for each in tried], tried, cost)
    codes[...] = E2M1.nearest(grouped / (scale * outer)[..., None], 0)


def matrix_factor(largest: Floats | np.floating) -> np.float32:
    """Return half of the f32 of a matrix of nvfp4 whose largest magnitude is given."""
    found = np.float32(largest) / np.float32(2 * LARGEST * E4M3.largest)
    return np.maximum(found, np.float32(2.0**-126)) if largest else np.float32(1)


def exponent_bytes(scale: Floats) -> Bytes:
    """Return the bytes of e8m0 for scales of mxfp4, powers of two: of 2^(e - 1) the byte e + 127."""
    found: Bytes = (np.frexp(scale)[1] + E8M0_BIAS).astype(np.uint8)
    return found


def exponent_scales(stored: Bytes) -> Floats:
    """Return the scales f32 of mxfp4 that bytes of e8m0 stand for, 2^(e - 1)."""
    return np.ldexp(np.float32(0.5), stored.astype(np.int32) - E8M0_BIAS)


def float_bytes(scale: Floats) -> Bytes:
    """Return the codes of scales that are numbers of e4m3."""
    return E4M3.rounded(scale)


def _largest(grouped: Floats) -> Floats:
    high, low = extremes(grouped)
    found: Floats = np.maximum(high, -low)
    return found


def _best(grouped: Floats, scales: list[Floats], choices: list[Floats], cost: Cost | None) -> Floats:
    """Return what stands in `choices` for the first of `scales` [rows, groups] with the least cost."""
    least: NDArray[np.floating] | None = None
    best = choices[0]
    for scale, choice in zip(scales, choices, strict=True):
        scaled = grouped / divisor(scale)[..., None]
        error = scaled - E2M1.values[E2M1.nearest(scaled, 0)]
        found = _squares(error, scale) if cost is None else cost(error * scale[..., None])
        best = choice if least is None else np.where(found < least, choice, best)
        least = found if least is None else np.minimum(found, least)
    return best


def _squares(error: Floats, scale: Floats) -> NDArray[np.float64]:
    """Return the squared errors [rows, groups] of `error` times `scale`, in parts of a scale."""
    parts = np.rint(error * np.float32(_PARTS / 2))
    found: NDArray[np.float64] = np.einsum("rgi,rgi->rg", parts, parts) * np.square(scale, dtype=np.float64)
    return found
