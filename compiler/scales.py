"""Scales of groups: the checks that they come with, and how they fit f16 or a byte."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import QuantizeError

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

LARGEST_SCALE = 65504
LEAST_BASE = np.uint32(127 - 24)
"""Scales of a byte are at least 2^-24, biased as in f32: products with scales of activations stay normal numbers."""

FOUR_BITS = np.uint32(0xFFF00000)
"""Sign, exponent and the first three bits of the fraction of an f32."""

NEXT = np.uint32(0x00100000)
"""What is added to the bits of such a number for the next larger one."""

INT4_BINADES = 15
LOOKUP_BINADES = 7
"""Powers of two between the largest scale of a row and the least: a byte's exponent takes four bits or three."""


def require_finite(*extremes: np.generic | NDArray[np.generic]) -> None:
    """Raise QuantizeError when a maximum or minimum, to which NaN and infinity propagate, is not finite."""
    for extreme in extremes:
        values = np.asarray(extreme, np.float32)
        if not np.isfinite(values).all():
            kind = "NaN" if np.isnan(values).any() else "infinity"
            raise QuantizeError(f"the weights contain {kind}; expected finite values (is the checkpoint damaged?)")


def half_scale(scale: Floats, out: NDArray[np.float16]) -> Floats:
    """Round `scale` into `out` (f16) and return the rounded values; raise QuantizeError on overflow."""
    with np.errstate(over="ignore", under="ignore"):
        out[...] = scale
    rounded = out.astype(np.float32)
    if not np.isfinite(rounded).all():
        refuse_scale(scale)
    return rounded


def refuse_scale(scale: Floats) -> NoReturn:
    raise QuantizeError(f"a group needs a scale of {np.abs(scale).max():g}, beyond f16 (65504); use int8 or bf16")


def divisor(scale: Floats) -> Floats:
    """Return `scale` with 1 for 0, the scale of a group of zeros."""
    return np.where(scale == 0, np.float32(1), scale)


def extremes(grouped: Floats) -> tuple[Floats, Floats]:
    """Return maximum and minimum of the groups [rows, groups, group], each [rows, groups].

    A transposed copy first: numpy takes maxima of whole rows at once 8 times faster than of short runs.
    """
    columns = np.ascontiguousarray(grouped.reshape(-1, grouped.shape[2]).T)
    high = columns.max(axis=0).reshape(grouped.shape[:2])
    low = columns.min(axis=0).reshape(grouped.shape[:2])
    require_finite(high, low)
    return high, low


def exponents(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the biased exponents of f32 by their bits."""
    return bits >> np.uint32(23) & np.uint32(0xFF)


def least_exponents(bits: NDArray[np.uint32], binades: int = INT4_BINADES) -> NDArray[np.uint32]:
    """Return the least exponent [rows, 1] that scales [rows, groups] may have, given as f32 bits."""
    largest: NDArray[np.uint32] = exponents(bits).max(axis=1, keepdims=True, initial=LEAST_BASE + binades)
    return largest - np.uint32(binades)


def scale_bytes(scale: Floats, binades: int = INT4_BINADES) -> tuple[Bytes, Floats]:
    """Return scales [rows, groups] as bytes, and the power of two [rows] that a row's multiply.

    A byte is a sign, bits for an exponent e in [0, binades], and three bits f: +-(1 + f / 8) 2^e.
    """
    bits = scale.view(np.uint32)
    base = least_exponents(bits, binades)
    short = bits >> np.uint32(31) << np.uint32(7) | exponents(bits) - base << np.uint32(3)
    short |= bits >> np.uint32(20) & np.uint32(7)
    return short.astype(np.uint8), (base[:, 0] << np.uint32(23)).view(np.float32)


def byte_scales(short: Bytes, base: Floats, binades: int = INT4_BINADES) -> Floats:
    """Return the scales f32 [..., rows, groups] that bytes and the bases [..., rows] of their rows stand for."""
    bits = short.astype(np.uint32)
    magnitude = ((bits & np.uint32(8 * binades + 7)) << np.uint32(20)) + base.view(np.uint32)[..., None]
    return (magnitude | bits >> np.uint32(7) << np.uint32(31)).view(np.float32)
