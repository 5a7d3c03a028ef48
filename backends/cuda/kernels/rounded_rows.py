"""Rows of activations as GEMMs read them: bf16 in the order of matrix instructions, or floating point of 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

from pyc.backends.cuda.kernels.kernel import Step
from pyc.backends.cuda.kernels.wrapper import launch, threads_for

_PLAIN, _FLOAT8 = -1, -2
"""In place of a distance: rows of f32, or of e4m3 (templates/cuda/include/rounded_rows.cuh)."""


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

    @property
    def constants(self) -> str:
        """The template arguments of kernels that write them."""
        return f"{self.distance}, {self.parts}"


@dataclass(frozen=True, slots=True)
class Float8Rows:
    """e4m3 [rows, features], and behind them f32 [rows], the power of two that multiplies each row."""

    def size_bytes(self, rows: int, features: int) -> int:
        """Return the bytes of so many rows."""
        return rows * (features + 4)

    @property
    def tail(self) -> str:
        """What the names of kernels that write them end in."""
        return "_float8"

    @property
    def constants(self) -> str:
        """The template arguments of kernels that write them."""
        return f"{_FLOAT8}, 1"


AnyRows = RoundedRows | Float8Rows


def row_constants(rows: AnyRows | None) -> str:
    """Return the template arguments of a kernel that writes such rows, or rows of f32 where there are none."""
    return rows.constants if rows else f"{_PLAIN}, 1"


BLOCKS_OF_ROWS = 2
"""Of a multiprocessor: others load while one rounds."""


def threads_of_row(features: int) -> int:
    """Return the threads of a block that has a row in registers, 16 bytes a thread at once."""
    return threads_for(features // 4, 512)


def round_to_float8(rows: int, features: int) -> Step:
    """Round "x" f32 [rows, features] to "rounded"."""
    threads = threads_of_row(features)
    return launch(
        f"round_to_float8_{rows}x{features}",
        "float8_rows.cuh",
        f"round_to_float8<{rows}, {features}, {threads}>",
        {"x": "const float", "rounded": "unsigned char"},
        grid=(rows, 1, 1),
        threads=threads,
        blocks=BLOCKS_OF_ROWS,
    )

