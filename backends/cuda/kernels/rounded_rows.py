"""Rows of activations as GEMMs read them: bf16, in the order of matrix instructions."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = -1
"""In place of a distance: rows of f32 (`PLAIN_ROWS` of templates/cuda/include/rounded_rows.cuh)."""


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """bf16 [parts, rows, features]: inputs of a block of 32 in the order that `distance` says, the first part rounded,
    the second what that leaves."""

    distance: int
    parts: int

    def size_bytes(self, rows: int, features: int) -> int:
        """Return the bytes of so many rows."""
        return 2 * self.parts * rows * features

    @property
    def tail(self) -> str:
        """What the names of kernels that write them end in."""
        return f"_rounded_d{self.distance}" + ("_split" if self.parts == 2 else "")


def row_constants(rounded: RoundedRows | None) -> str:
    """Return the template arguments of a kernel that writes such rows, or rows of f32 where there are none."""
    return f"{rounded.distance}, {rounded.parts}" if rounded else f"{PLAIN}, 1"
