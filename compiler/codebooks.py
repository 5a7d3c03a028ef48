"""Tables of integers that codes of 2 to 5 bits stand for.

A group of weights takes a codebook's entries as they are, or all of them shifted by the same integer, times a scale of
either sign. So there are four ways to place the entries, none of which lies evenly about zero. Those of `lut4`, `lut3`
and `lut2` have the least squared error for groups of 32 normally distributed weights: Lloyd's algorithm over entries,
shift and scales (docs/lab/2026-11-lookup-tables.md); those of `lut5` for such, weights of the demo model and weights
with longer tails. `int3` and `int2` are evenly spaced, as plain integers.

`e2m1` has the numbers of floating point of 4 bits, twice as large, in the order of their codes; `ternary` -1, 0 and 1,
and a code that is not used. Both have a zero, are not shifted, and come with scales of their own (`compiler.fp4`,
`compiler.ternary`).

Kernels multiply what entries are above the least by int8 activations and add the rest as a zero point. The span of 4
and 5 bits is at most 127, so that two products fit 16 bits; of fewer bits at most 63, for four products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.host.made_once import made_once

_HALVES = 512
"""Scaled weights are looked up by halves: midpoints of integers are halves, and entries are far from +-256."""


@dataclass(frozen=True)
class Codebook:
    """`entries`: 2^bits integers in the order of their codes, which a group may shift by `shift`; `steps`: scales that
    are tried, counted from the one that maps the largest magnitude of a group onto an end of the entries, in eighths of
    a binade.
    """

    bits: int
    entries: tuple[int, ...]
    shift: int
    steps: tuple[int, ...]

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """The entries as they are and shifted; once where the shift is 0."""
        shifted = tuple(entry + self.shift for entry in self.entries)
        return (self.entries, shifted) if self.shift else (self.entries,)

    @property
    def least(self) -> int:
        """The least entry."""
        return min(self.entries)

    @made_once
    def values(self) -> NDArray[np.float32]:
        """The value of each code, f32 [2^(bits + 1)]: a code's highest bit says that its group is shifted."""
        entries = np.array(self.entries, np.float32)
        return np.concatenate([entries, entries + np.float32(self.shift)])

    @made_once
    def _codes(self) -> NDArray[np.uint8]:
        """The nearest code of each table for numbers from -256 to 256 in halves, u8 [1 or 2, 1024]."""
        halves = np.arange(-_HALVES, _HALVES) / 2
        found = []
        for number, table in enumerate(self.tables):
            values, codes = np.unique(table, return_index=True)
            nearest = np.searchsorted(np.convolve(values, (0.5, 0.5), "valid"), halves, "right")
            found.append(codes[nearest] + (number << self.bits))
        return np.stack(found).astype(np.uint8)

    def nearest(self, scaled: NDArray[np.float32], table: int | NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the codes of the entries nearest to `scaled`, as they are (table 0) or shifted (1); between two, the
        larger. `table` broadcasts against `scaled`.
        """
        halves = np.floor(scaled * np.float32(2))
        np.clip(halves, -_HALVES, _HALVES - 1, out=halves)
        halves += _HALVES
        codes: NDArray[np.uint8] = self._codes[table, halves.astype(np.int32)]
        return codes


CODEBOOKS: dict[str, Codebook] = {
    "lut5": Codebook(
        5,
        (
            *(-64, -58, -53, -48, -44, -39, -35, -31, -27, -23, -20, -16, -13, -10, -6, -3),
            *(0, 4, 7, 10, 14, 17, 21, 24, 28, 32, 36, 40, 45, 50, 55, 63),
        ),
        1,
        (-1, 0, 1),
    ),
    "lut4": Codebook(4, (-54, -40, -31, -24, -18, -13, -8, -3, 2, 7, 12, 17, 23, 30, 38, 47), 2, (-1, 0, 1)),
    "lut3": Codebook(3, (-26, -16, -10, -5, 0, 5, 11, 18), 3, (-2, -1, 0, 1)),
    "lut2": Codebook(2, (-30, -12, 1, 16), 4, (-5, -4, -3, -2, -1, 0, 1)),
    "int3": Codebook(3, tuple(range(-28, 28, 7)), 0, (-2, -1, 0, 1)),
    "int2": Codebook(2, tuple(range(-30, 30, 15)), 0, (-5, -4, -3, -2, -1, 0, 1)),
    "e2m1": Codebook(4, (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), 0, ()),
    "ternary": Codebook(2, (-1, 0, 1, 1), 0, ()),
}
"""Every codebook by its name."""

SHORT_SCALED = ("lut5", "lut4", "lut3", "lut2", "int3", "int2")
"""Those whose groups have scales of seven bits (`compiler.lookup`)."""
