"""How a weight is stored: data only, no arithmetic (that is in `compiler.quantization`).

Formulas, for a row w of a weight [out, in] and a group of `group_size` consecutive inputs:

- `Dense(dtype)`: the value itself; `dtype` None keeps the source's own (f64 becomes f32).
- `Int8Channel`: w = scale * q, q in [-127, 127], one f32 scale a row.
- `Int8Group`: the same, one f16 scale a group.
- `Int4Group(symmetric)`: w = scale * (q - 8), q in [0, 15], one scale of eight bits a group.
- `Int4Group(asymmetric)`: w = scale * (q - zero), q and zero in [0, 15], one f16 scale a group.
- `LookupGroup`: w = scale * table[q], 32, 16, 8 or 4 integers, shifted or not, and one scale of seven bits a group; or
  with tables that have a zero, never shifted, and other scales (`compiler.fp4`, `compiler.ternary`):
  `mxfp4` and `nvfp4`, w = scale * v, v a number of e2m1, one scale e8m0 for 32 inputs, or e4m3 for 16 and an f32 for
  the matrix; `ternary`, w = scale * q, q in {-1, 0, 1}, one f32 scale a row.
- `Float8`: w = scale * v, v a number of e4m3 or e5m2 (`compiler.fp8`), one f32 scale for a row, the matrix or a block.

`activations` says what the products use: "int8" quantizes activations at run time to int8 in groups of 32
inputs (one f32 scale each), "f32" multiplies the dequantized weight with f32 activations, "bf16",
for weights stored as bf16 or as floating point of 8 bits, rounds them to bf16, "fp8", for the latter, to e4m3 with a
power of two for each row, and "mxfp8" to e4m3 in groups of 32 inputs with a power of two each (`compiler.mxfp8`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Literal

from pyc.compiler.codebooks import SHORT_SCALED
from pyc.runtime.errors import RecipeError

Activations = Literal["f32", "bf16", "int8", "fp8", "mxfp8"]

Algorithm = Literal["rtn", "imatrix", "gptq", "awq", "awq-gptq", "smoothquant", "smoothquant-gptq", "yaqa"]
"""How values are rounded to those of a scheme (`passes.rounding`)."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Floating point storage; `dtype` is "f32", "f16", "bf16", or None for the source's own.

    `activations` "bf16" is for what is stored as bf16; the others multiply with f32 all the same.
    """

    dtype: str | None = None
    activations: Activations = "f32"

    @property
    def name(self) -> str:
        """Canonical scheme name."""
        return self.dtype or "none"


@dataclass(frozen=True, slots=True)
class Int8Channel:
    """Symmetric int8, one scale for each output channel."""

    activations: Activations = "int8"

    @property
    def name(self) -> str:
        """Canonical scheme name."""
        return "int8"


@dataclass(frozen=True, slots=True)
class Int8Group:
    """Symmetric int8 in groups of `group_size` (32, 64 or 128) consecutive inputs of a row."""

    group_size: int = 32
    activations: Activations = "int8"

    @property
    def name(self) -> str:
        """Canonical scheme name."""
        return f"int8-g{self.group_size}"


@dataclass(frozen=True, slots=True)
class Int4Group:
    """Int4 in groups of `group_size` (32, 64 or 128) consecutive inputs of a row."""

    group_size: int = 32
    symmetric: bool = True
    activations: Activations = "int8"

    @property
    def name(self) -> str:
        """Canonical scheme name."""
        return f"int4-g{self.group_size}" + ("" if self.symmetric else "-asym")


ScaleForm = Literal["short", "e8m0", "e4m3", "row"]
"""Scales of groups: seven bits of an f32 by a power of two of the row; the exponent of a power of two; floating point
of 8 bits by an f32 of the matrix; none but the f32 of the row."""

_NAMES: dict[ScaleForm, str] = {"e8m0": "mxfp4", "e4m3": "nvfp4", "row": "ternary"}


@dataclass(frozen=True, slots=True)
class LookupGroup:
    """Codes of 2, 3 or 4 bits that stand for entries of a table, in groups of `group_size` consecutive inputs of a row.

    `codebook` is a name in `compiler.codebooks`; with short scales a group takes its entries as they are, or all
    shifted.
    """

    codebook: str
    group_size: int = 32
    scales: ScaleForm = "short"
    activations: Activations = "int8"

    @property
    def name(self) -> str:
        """Canonical scheme name."""
        return _NAMES.get(self.scales) or f"{self.codebook}-g{self.group_size}"

    @property
    def has_row_factors(self) -> bool:
        """Whether an f32 of a row, which may be that of the whole matrix, multiplies what its groups stand for."""
        return self.scales in ("e4m3", "row")


Float8Format = Literal["e4m3", "e5m2"]


Float8Scaling = Literal["row", "tensor", "block"]


@dataclass(frozen=True, slots=True)
class Float8:
    """Floating point of 8 bits. `scaling` says what shares a scale: a row, the matrix, or a block of 128 x 128."""

    format: Float8Format = "e4m3"
    scaling: Float8Scaling = "row"
    activations: Activations = "f32"

    @property
    def name(self) -> str:
        """Canonical scheme name."""
        tail = {"row": "", "tensor": "-tensor", "block": "-b128"}[self.scaling]
        return "fp8" + ("" if self.format == "e4m3" else f"-{self.format}") + tail


Quantized = Int8Channel | Int8Group | Int4Group | LookupGroup | Float8


Scheme = Dense | Quantized


def activations_of(scheme: Scheme) -> Activations:
    """Return what the products of `scheme` multiply with: "bf16" is for weights that are stored as bf16 alone."""
    if isinstance(scheme, Dense) and scheme.dtype != "bf16":
        return "f32"
    return scheme.activations


SCHEMES: dict[str, Scheme] = {
    "none": Dense(),
    "f32": Dense("f32"),
    "f16": Dense("f16"),
    "bf16": Dense("bf16"),
    "int8": Int8Channel(),
    "int8-g32": Int8Group(32),
    "int4-g32": Int4Group(32),
    "int4-g64": Int4Group(64),
    "int4-g128": Int4Group(128),
    "int4-g32-asym": Int4Group(32, symmetric=False),
    "int4-g64-asym": Int4Group(64, symmetric=False),
    "int4-g128-asym": Int4Group(128, symmetric=False),
    **{scheme.name: scheme for book in SHORT_SCALED for scheme in (LookupGroup(book, 32), LookupGroup(book, 128))},
    "mxfp4": LookupGroup("e2m1", 32, "e8m0"),
    "nvfp4": LookupGroup("e2m1", 16, "e4m3"),
    "ternary": LookupGroup("ternary", 32, "row"),
    "fp8": Float8(),
    "fp8-e5m2": Float8("e5m2"),
    "fp8-tensor": Float8(scaling="tensor"),
    "fp8-b128": Float8(scaling="block"),
}
"""Every scheme by its canonical name."""

ALIASES: dict[str, str] = {
    "W8A8": "int8",
    "W4A8": "int4-g128",
    "W4A16": "int4-g128",
    "W4A16_ASYM": "int4-g128-asym",
    "W8A16": "int8",
    "MXFP4A16": "mxfp4",
    "MXFP4": "mxfp4",
    "NVFP4A16": "nvfp4",
    "NVFP4": "nvfp4",
    "FP8": "fp8",
    "FP8_DYNAMIC": "fp8",
    "FP8_BLOCK": "fp8-b128",
}
"""Names of compressed-tensors; the A16 forms keep f32 activations (see `parse_scheme`), and those of FP8 have them."""


def parse_scheme(name: str, activations: Activations = "int8") -> Scheme:
    """Return the scheme called `name` (canonical or alias) in a recipe with `activations`; A16 aliases force f32.

    "bf16" is for weights of floating point, whose products otherwise take f32; quantized ones take int8 beside it.
    "fp8" is for weights in floating point of 8 bits: other quantized ones take int8 beside it. "mxfp8" is for all that
    are quantized, floating point of 8 bits among them; dense ones take f32 beside both.
    Raises RecipeError with the nearest name when there is none.
    """
    scheme = SCHEMES.get(ALIASES.get(name, name))
    if scheme is None:
        near = difflib.get_close_matches(name, [*SCHEMES, *ALIASES], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RecipeError(f"unknown scheme {name!r}{hint} (known: {', '.join([*SCHEMES, *ALIASES])})")
    if isinstance(scheme, Dense):
        return replace(scheme, activations="bf16" if activations == "bf16" else "f32")
    if isinstance(scheme, Float8):
        return replace(scheme, activations=activations_beside_float8(activations))
    return replace(scheme, activations="f32" if "A16" in name else activations_beside(activations))


KEEP_CODES = "keep_codes"
"""Among the passes of an artifact: how many matrices kept codes of a quantized checkpoint, by scheme."""

KEEP_TYPES = "keep_types"
"""Among the passes of an artifact: how many matrices kept the type that a checkpoint has, by type."""


def activations_beside(activations: Activations) -> Activations:
    """Return what quantized weights multiply with in a recipe with `activations`."""
    return "int8" if activations in ("bf16", "fp8") else activations


def activations_beside_float8(activations: Activations) -> Activations:
    """Return what weights in floating point of 8 bits multiply with in a recipe with `activations`."""
    return "f32" if activations == "int8" else activations
