"""Weights of checkpoints that are quantized already: codes, and what makes numbers of them.

They are expressions as sources are, with the name and the type that a message or a build without quantization gives
them. `compiler.evaluate_codes` has their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyc.compiler.sources import Shape, Source

Form = Literal["gptq", "awq", "compressed", "bytes"]
"""How integers lie: i32 words of [K, N] packed along K (gptq) or along N in AWQ's order, of [N, K] along K
(compressed); i8 [N, K] (bytes). Zero points and scales are [groups, N] in the first two, [N, groups] in the others;
zero points are packed along N, in the same order."""


@dataclass(frozen=True, slots=True)
class IntegerCodes:
    """(code - zero point) * scale * factor, codes of `bits` bits; i8 are codes less 128.

    `group` consecutive inputs share a scale, or those that `order` [K] gives the same number. `zero` is added to the
    stored zero points; it is the zero point where none are stored.
    """

    codes: Source
    scales: Source
    zeros: Source | None
    order: Source | None
    form: Form
    bits: int
    group: int
    zero: int
    shape: Shape
    factor: float = 1.0

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every tensor that it is made of."""
        return tuple(part for part in (self.codes, self.scales, self.zeros, self.order) if part is not None)

    @property
    def tensor(self) -> str:
        """The name of the codes."""
        return self.codes.tensor

    @property
    def dtype(self) -> str:
        """The type that values are kept in: that of the scales."""
        return self.scales.dtype


@dataclass(frozen=True, slots=True)
class Float8Codes:
    """value * scale, values f8 [N, K]; a scale for each block of `block` rows and columns, the last ones short."""

    codes: Source
    scales: Source
    block: tuple[int, int]
    shape: Shape

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every tensor that it is made of."""
        return (self.codes, self.scales)

    @property
    def tensor(self) -> str:
        """The name of the codes."""
        return self.codes.tensor

    @property
    def dtype(self) -> str:
        """The type that values are kept in: bf16, which is what such models compute in."""
        return self.scales.dtype if self.scales.dtype == "f16" else "bf16"


@dataclass(frozen=True, slots=True)
class NestedScales:
    """Scales that are codes themselves: table[code] * scale + offset, a scale for each `block` of them."""

    table: Source
    scales: Source
    block: int
    offset: float


@dataclass(frozen=True, slots=True)
class TableCodes:
    """table[code] * scale (nf4 and fp4 of bitsandbytes): two codes a byte, the first in the upper half.

    Row after row, `block` codes share one of `scales`, f32 or codes of `nested`.
    """

    codes: Source
    table: Source
    scales: Source
    nested: NestedScales | None
    block: int
    dtype: str
    shape: Shape

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every tensor that it is made of."""
        nested = () if self.nested is None else (self.nested.table, self.nested.scales)
        return (self.codes, self.table, self.scales, *nested)

    @property
    def tensor(self) -> str:
        """The name of the codes."""
        return self.codes.tensor


@dataclass(frozen=True, slots=True)
class Float4Codes:
    """value * scale, values e2m1 u8 [N, K / 2], two a byte, the first in the lower half; `scales` u8 (e8m0) or f8_e4m3
    [N, K / group]. `factor` f32 [1], which divides scales where `divides`, else multiplies them."""

    codes: Source
    scales: Source
    factor: Source | None
    divides: bool
    shape: Shape

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every tensor that it is made of."""
        return tuple(part for part in (self.codes, self.scales, self.factor) if part is not None)

    @property
    def tensor(self) -> str:
        """The name of the codes."""
        return self.codes.tensor

    @property
    def dtype(self) -> str:
        """The type that values are kept in: bf16, which is what such models compute in."""
        return "bf16"


@dataclass(frozen=True, slots=True)
class TernaryCodes:
    """(code - 1) * scale, or / scale where `divides`; codes of 2 bits u8 [N / 4, K]: row n is in bits 2 (n / (N / 4))
    of row n % (N / 4). `scale` [1]. Where it is None, `codes` are the weights [N, K] themselves, and the scale is
    the mean of their magnitudes: what stands for w is clip(round(w / mean), -1, 1) * mean."""

    codes: Source
    scale: Source | None
    divides: bool
    shape: Shape

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every tensor that it is made of."""
        return (self.codes,) if self.scale is None else (self.codes, self.scale)

    @property
    def tensor(self) -> str:
        """The name of the codes."""
        return self.codes.tensor

    @property
    def dtype(self) -> str:
        """The type that values are kept in: that of the scale."""
        return self.codes.dtype if self.scale is None else self.scale.dtype


Codes = IntegerCodes | Float8Codes | TableCodes | Float4Codes | TernaryCodes
