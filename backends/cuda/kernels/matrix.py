"""Matrices as CUDA kernels take them: what schemes are in memory, and the constants by which headers know them.

A matrix [N, K] comes in parts (`backends.cuda.layouts`), each an array of its own: "weight" where it holds numbers,
else "weight.codes" and those of "weight.scales", "weight.zeros" and "weight.factors" that its scheme has. A weight is

    numbers: the number                                      int8: scale * (code - 128)
    int4: scale * (code - 8), or scale * (code - zero)       float8: scale * value of the code
    lookup: factor * scale * (table[code] + shift), the shift where the lowest bit of the group's scale is set

Scales are one for `group` consecutive inputs of a row, or one for a row. `templates/cuda/include/matrix.cuh` decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Literal

from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.fp8 import BLOCK_SIDE
from pyc.compiler.schemes import Dense, Float8, Int4Group, Int8Channel, Int8Group, LookupGroup, Scheme
from pyc.runtime.host.rounding import ceil_div, round_up

Kind = Literal["F32", "F16", "BF16", "INT8", "INT4", "LOOKUP5", "LOOKUP4", "LOOKUP3", "LOOKUP2", "E4M3", "E5M2"]
ScaleKind = Literal["NO_SCALE", "SCALE_BF16", "SCALE_F16", "SCALE_F32"]

_BITS: dict[Kind, int] = {
    **{"F32": 32, "F16": 16, "BF16": 16, "INT8": 8, "INT4": 4, "E4M3": 8, "E5M2": 8},
    **{"LOOKUP5": 5, "LOOKUP4": 4, "LOOKUP3": 3, "LOOKUP2": 2},
}
_LOOKUP: dict[int, Kind] = {5: "LOOKUP5", 4: "LOOKUP4", 3: "LOOKUP3", 2: "LOOKUP2"}
_SCALE_BYTES: dict[ScaleKind, int] = {"NO_SCALE": 0, "SCALE_BF16": 2, "SCALE_F16": 2, "SCALE_F32": 4}
_SHORT_BITS = 4
"""Significant bits of scales that are stored as bf16."""
_BFLOAT_BITS = 8
"""Significant bits of bf16."""


@dataclass(frozen=True, slots=True)
class MatrixFormat:
    """How a matrix lies in memory. `group`: inputs that share a scale, 0 where a row does; `table` and `shift` are
    those of lookup tables."""

    name: str
    kind: Kind
    group: int = 0
    scale: ScaleKind = "NO_SCALE"
    has_zeros: bool = False
    has_factors: bool = False
    table: tuple[int, ...] = ()
    shift: int = 0

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return _BITS[self.kind]

    @property
    def has_planes(self) -> bool:
        """Whether a block of 32 codes has bits of a code in several places."""
        return self.bits in (2, 3, 5)

    @property
    def is_wide(self) -> bool:
        """Whether a weight is two bf16."""
        return self.kind in ("F16", "F32")

    @property
    def pair_distance(self) -> int:
        """How far apart the inputs of a pair are that a register holds: `distance_of` of the header."""
        return {"BF16": 0, "F16": 1, "F32": 1, "INT4": 4}.get(self.kind, 2)

    @property
    def parts(self) -> tuple[str, ...]:
        """The arrays that it consists of, in the order in which kernels take them."""
        if self.scale == "NO_SCALE":
            return ("weight",)
        wanted = {"codes": True, "scales": True, "zeros": self.has_zeros, "factors": self.has_factors}
        return tuple(f"weight.{part}" for part, is_there in wanted.items() if is_there)

    @property
    def folds(self) -> bool:
        """Whether a scale times a code is a number of bf16, always."""
        if self.scale != "SCALE_BF16" or self.shift:
            return False
        integers = self.table or range(-8, 8)
        return max(map(_significant_bits, integers)) + _SHORT_BITS <= _BFLOAT_BITS

    @property
    def has_short_groups(self) -> bool:
        """Whether inputs of one matrix instruction have several scales."""
        return 0 < self.group < 32

    def row_bytes(self, inputs: int) -> int:
        """Return the bytes of a row's codes or numbers."""
        return (round_up(inputs, 32) if self.kind == "INT8" else inputs) * self.bits // 8

    def size_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a matrix, all parts of it."""
        groups = ceil_div(inputs, self.group) if self.group else 1
        of_row = self.row_bytes(inputs) + groups * _SCALE_BYTES[self.scale]
        of_row += ceil_div(groups, 2) if self.has_zeros else 0
        return outputs * (of_row + (4 if self.has_factors else 0))

    @property
    def type_name(self) -> str:
        """The type of `templates/cuda/include/matrix.cuh` that it is."""
        values = [f"pyc::{self.kind}", str(self.group), f"pyc::{self.scale}"]
        values += [str(flag).lower() for flag in (self.has_zeros, self.has_factors)]
        if self.table:
            least = min(self.table)
            entries = [entry - least for entry in self.table] + [0] * (32 - len(self.table))
            assert max(entries) < 128, f"{self.name}: the entries span more than seven bits"
            words = [int.from_bytes(bytes(entries[start : start + 4]), "little") for start in range(0, 32, 4)]
            values += [f"{word:#010x}u" for word in words] + [str(least), str(self.shift)]
        return f"pyc::Matrix<{', '.join(values)}>"


@lru_cache
def matrix_format(scheme: Scheme) -> MatrixFormat:
    """Return how matrices of a scheme lie in memory; `Dense.dtype` must be set."""
    name = scheme.name.replace("-", "_")
    match scheme:
        case Dense(dtype="f32"):
            return MatrixFormat(name, "F32")
        case Dense(dtype="f16"):
            return MatrixFormat(name, "F16")
        case Dense(dtype="bf16"):
            return MatrixFormat(name, "BF16")
        case Int8Channel():
            return MatrixFormat(name, "INT8", 0, "SCALE_F32")
        case Int8Group(group_size):
            return MatrixFormat(name, "INT8", group_size, "SCALE_F16")
        case Int4Group(group_size, symmetric=True):
            return MatrixFormat(name, "INT4", group_size, "SCALE_BF16")
        case Int4Group(group_size):
            return MatrixFormat(name, "INT4", group_size, "SCALE_F16", has_zeros=True)
        case LookupGroup(codebook, group_size):
            book = CODEBOOKS[codebook]
            kind, factors = _LOOKUP[book.bits], scheme.has_row_factors
            if scheme.scales == "row":
                return MatrixFormat(name, kind, 0, "SCALE_F32", table=book.entries, shift=book.shift)
            return MatrixFormat(name, kind, group_size, "SCALE_BF16", False, factors, book.entries, book.shift)
        case Float8(float_format, scaling):
            group = BLOCK_SIDE if scaling == "block" else 0
            return MatrixFormat(name, "E4M3" if float_format == "e4m3" else "E5M2", group, "SCALE_F32")
    raise AssertionError(f"{scheme} has no dtype")


def _significant_bits(integer: int) -> int:
    return (abs(integer) // gcd(integer, 1 << 8)).bit_length() if integer else 0
