"""Rounding to the entries of codebooks (`compiler.codebooks`), as numpy arithmetic in f32.

A group of weights w of one row is stood for by d T[q], T the codebook's entries as they are or shifted, and d a scale
of four significant bits, of either sign. For each T and each of its ends E, with e the w of largest magnitude and e / E
rounded toward zero to four bits, the scales tried are that number and some steps from it (`Codebook.steps`; a step is
an eighth of a binade). Of all, the first with the least d^2 times the sum of squares of round(4 (w / d - T[q])) is
taken: errors are rounded to quarters of a table's unit, so that their sums are exact in any order. q is the code of the
entry nearest to w / d. d is no smaller than 2^-7 of the largest power of two in the row's scales.

Not every T has a zero: zeros may become as much as 3 (lut4, lut3) or 5 (lut2) times the scale.
"""

from __future__ import annotations

import numpy as np

from pyc.compiler.codebooks import CODEBOOKS, Codebook
from pyc.compiler.scales import (
    FOUR_BITS,
    LARGEST_SCALE,
    LOOKUP_BINADES,
    NEXT,
    Bytes,
    Floats,
    divisor,
    exponents,
    extremes,
    least_exponents,
    refuse_scale,
)
from pyc.compiler.schemes import LookupGroup


def codebook_of(scheme: LookupGroup) -> Codebook:
    """Return the codebook of a scheme."""
    return CODEBOOKS[scheme.codebook]


def lookup_tile(grouped: Floats, codebook: Codebook, codes: Bytes, scale: Floats) -> None:
    """Quantize `grouped` [rows, groups, group] into `codes` and `scale` [rows, groups].

    Raises QuantizeError for NaN, infinity and scales beyond f16.
    """
    high, low = extremes(grouped)
    largest = np.where(high >= -low, high, low)
    least = np.full(largest.shape, np.inf, np.float32)
    best, choice = np.zeros(largest.shape, np.uint32), np.zeros(largest.shape, np.uint8)
    for table, entries in enumerate(codebook.tables):
        for end in (entries[0], entries[-1]):
            wanted = (largest / np.float32(end)).astype(np.float32, copy=False)
            if np.abs(wanted).max(initial=0) > LARGEST_SCALE:
                refuse_scale(wanted)
            middle = wanted.view(np.uint32) & FOUR_BITS
            for step in codebook.steps:
                bits = np.where(np.abs(wanted) >= 2.0**-24, middle + np.uint32(step * int(NEXT) & 0xFFFFFFFF), middle)
                cost = _cost(grouped, bits.view(np.float32), codebook, table)
                better = cost < least
                best, choice = np.where(better, bits, best), np.where(better, np.uint8(table), choice)
                least = np.where(better, cost, least)
    base = least_exponents(best, LOOKUP_BINADES)
    scale.view(np.uint32)[...] = np.where(exponents(best) < base, base << np.uint32(23), best)
    codes[...] = codebook.nearest(grouped / scale[..., None], choice[..., None])


def as_bytes(codes: Bytes, scheme: LookupGroup) -> Bytes:
    """Return the entries of codes + 128: the codes of int8 in groups with the same scales, and the same numbers."""
    entries = codebook_of(scheme).values + np.float32(128)
    found: Bytes = entries.astype(np.uint8)[codes]
    return found


def _cost(grouped: Floats, scale: Floats, codebook: Codebook, table: int) -> Floats:
    """Return the squared errors [rows, groups] with scales of the same shape."""
    scaled = grouped / divisor(scale)[..., None]
    error = np.rint((scaled - codebook.values[codebook.nearest(scaled, table)]) * np.float32(4))
    found: Floats = np.einsum("rgi,rgi->rg", error, error) * (scale * scale)
    return found
