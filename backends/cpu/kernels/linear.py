"""The C kernels of a CPU library: what each one is. `backends.cpu.kernels.translation_units` compiles them.

A kernel is a frozen `KernelSpec`; its symbol follows from its content, so equal specs are one function. All
return int32 0. With m tokens, N outputs, K inputs, weights in panels (`backends.cpu.layouts`) and every pointer
aligned to 64 bytes, the signatures are:

- linear:                   f(const void *x, const uint8_t *w, const float *bias [N], float *y [m, N]);
                              x is f32 [m, K], or u8 [m, row_bytes] of `quantize_rows` or `split_rows` for m rows
- linear_gated:             f(const uint8_t *x [m, row_bytes], const uint8_t *w, uint8_t *out [m, row_bytes])
- linear_append:            f(x, w, bias as of linear, then angles and all that follows of qkv_append)
- embedding:                f(const int32_t *ids [m], const uint8_t *table, float *y [m, K])
- quantize_rows, split_rows: f(const float *x [m, K], uint8_t *out [m, row_bytes])
- round_fp8, round_mxfp8:   f(const float *x [m, K], float *y [m, K])
- attention:                f(const float *q [m, heads * d], const int32_t *positions [m], const int32_t *sequences [m],
                              const int32_t *block_table, const uint8_t *cache, float *y [m, heads * d])
- span_attention:           f(const float *qkv [m, 3 heads * d], const int32_t *span_start [m],
                              const int32_t *span_end [m], float *y [m, heads * d])
- qkv_append:               f(const float *qkv [m, (heads + 2 kv_heads) * d], const float *angles [m, 2 half],
                              const int32_t *positions [m], const int32_t *sequences [m], const int32_t *block_table,
                              const float *q_gain [d], const float *k_gain [d], uint8_t *cache,
                              float *queries [m, heads * d])

all followed by int32_t m, int32_t part, int32_t parts: a call does one of `parts` parts of about the same cost. Parts
write to different places, and results depend neither on m nor on how many there are. Behind m, attention takes int32_t
threads: so many share the parts. It decides which heads are taken together and which stretches apart, and no result. A
row is written by the last of its parts to end, so all parts of a call are over before those of another begin.

`bias` is left out when has_bias is false, the gains when has_gain is. An embedding writes zeros for an id outside
[0, N).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Literal

from pyc.backends.cpu.kernels.attention import AppendSpec, AttentionSpec, VarlenAttentionSpec, rows_constant
from pyc.backends.cpu.layouts import PIECES, activation_layout, panel_layout, quantized_row_bytes, split_bytes
from pyc.backends.cpu.row_formats import RowFormat, is_split, row_format_of
from pyc.compiler.fp8 import BLOCK_SIDE
from pyc.compiler.lookup import codebook_of
from pyc.compiler.quantization import BLOCK
from pyc.compiler.schemes import Dense, Float8, Int4Group, Int8Group, LookupGroup, Scheme
from pyc.runtime.host.rounding import ceil_div

KernelKind = Literal["linear", "embedding"]

@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The constants of `struct pyc_shape` (templates/cpu/include/pyc_register_blocks.h), in its order."""

    outputs: int
    inputs: int
    blocks: int
    group_blocks: int
    zeros: int
    row_exponents: int
    data: int
    panel_bytes: int
    row_corrections: int
    row_data: int
    row_bytes: int
    pieces: int = 1
    amx: bool = False
    bits: int = 0
    lookup_zero: int = 0
    lookup_shift: int = 0
    table: tuple[int, ...] = (0, 0, 0, 0)
    scale_form: str = "PYC_SCALES_SHORT"
    row_factors: int = 0


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel that reads packed weights: `kind`, N `outputs`, K `inputs` and the weight's scheme.

    `amx`: a matmul by AMX, for libraries that have it and batches of TILE_TOKENS or more.
    """

    kind: KernelKind
    outputs: int
    inputs: int
    scheme: Scheme
    has_bias: bool = False
    amx: bool = False

    @property
    def row_format(self) -> RowFormat | None:
        """The format of the rows that a matmul reads; None: f32 activations, or no matmul."""
        return row_format_of(self.scheme) if self.kind == "linear" else None

    @property
    def splits(self) -> bool:
        """Whether AMX multiplies it exactly, by activations f32 that are split (`SplitSpec`)."""
        return self.kind == "linear" and is_split(self.scheme)

    @property
    def is_integer_simd(self) -> bool:
        """Whether it is a matmul of integers by SIMD, not by AMX."""
        return self.row_format in ("float_scale", "power_of_two", "interleaved") and not self.amx

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_linear_int4_g32_n4096_k1024`."""
        return self._name(f"_n{self.outputs}")

    @property
    def core(self) -> str:
        """The C function that matmuls have in common which differ in N alone."""
        return self._name("")

    def _name(self, outputs: str) -> str:
        name = self.scheme.name.replace("-", "_")
        tail = ("_bias" if self.has_bias else "") + ("_amx" if self.amx else "")
        return f"pyc_{self.kind}_{name}{outputs}_k{self.inputs}{self._activations}{tail}"

    @property
    def _activations(self) -> str:
        """A part of the symbol: what a matmul multiplies with, where that is not usual for the scheme."""
        dense = isinstance(self.scheme, Dense | Float8)
        if self.kind != "linear" or dense == (self.row_format is None):
            return ""
        return "_x_bf16" if dense else "_x_f32"

    @property
    def family(self) -> str:
        """A part of the names of functions for weights of the scheme."""
        match self.scheme:
            case Int4Group():
                return "int4"
            case Int8Group():
                return "int8_group"
            case LookupGroup():
                return "lookup"
            case Float8(fmt, scaling):
                return f"fp8_{fmt}" + ("_block" if scaling == "block" else "")
            case _:
                return self.scheme.name

    @property
    def algorithm(self) -> str:
        """The function of the headers that the kernel calls; one for all `panel`s where AMX multiplies."""
        tail = {"": "", "_x_bf16": "_rounded", "_x_f32": "_float"}[self._activations]
        return "pyc_linear_amx" if self.amx else f"pyc_{self.kind}_{self.family}{tail}"

    @property
    def panel(self) -> str:
        """The C constant of what the weight's panels hold."""
        return f"PYC_PANEL_{self.family.upper()}"

    @property
    def shape(self) -> Shape:
        """The shape's constants; raises QuantizeError when the scheme's groups do not divide K."""
        layout = panel_layout(self.scheme, self.inputs)
        split = self.amx and self.splits
        shape = replace(
            SplitSpec(self.inputs).shape if split else _row_shape(self.inputs, self.row_format),
            outputs=self.outputs,
            group_blocks=_group(self.scheme) // BLOCK,
            zeros=layout.zeros.offset if layout.zeros else 0,
            row_exponents=layout.row_exponents.offset if layout.row_exponents else 0,
            data=layout.data.offset,
            panel_bytes=layout.panel_bytes,
            amx=self.amx,
        )
        if not isinstance(self.scheme, LookupGroup):
            return shape
        codebook = codebook_of(self.scheme)
        least = codebook.least
        table = struct.unpack("<4Q", bytes(entry - least for entry in codebook.entries).ljust(32, b"\0"))
        return replace(
            shape,
            bits=codebook.bits,
            lookup_zero=-least,
            lookup_shift=codebook.shift,
            table=table,
            scale_form=f"PYC_SCALES_{self.scheme.scales.upper()}",
            row_factors=layout.row_factors.offset if layout.row_factors else 0,
        )


def _group(scheme: Scheme) -> int:
    """Inputs that share a scale; BLOCK where a row has one, or none."""
    if isinstance(scheme, Int4Group | Int8Group | LookupGroup):
        return max(scheme.group_size, BLOCK)
    return BLOCK_SIDE if isinstance(scheme, Float8) and scheme.scaling == "block" else BLOCK


@dataclass(frozen=True, slots=True)
class GatedSpec:
    """SwiGLU or GeGLU: a matmul of N / 2 gates and as many values, into `row_format` of act(gate) * value, act being
    `function`.

    For matmuls by AMX (templates/cpu/include/pyc_linear_amx.h), and for libraries that fold
    (templates/cpu/include/pyc_linear_gated.h), with batches of whole interleaved groups of rows.
    """

    matmul: KernelSpec
    function: str
    row_format: RowFormat
    kind: Literal["linear_gated"] = "linear_gated"

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_linear_int4_g32_n6144_k1024_amx_silu_interleaved`."""
        return f"{self.matmul.symbol}_{self.function}_{self.row_format}"

    @property
    def gate(self) -> str:
        """The C constant of the activation function."""
        return f"PYC_GATE_{self.function.upper()}"

    @property
    def result(self) -> str:
        """The C constant of what the result is."""
        return rows_constant(self.row_format)

    @property
    def shape(self) -> Shape:
        """The shape's constants: the matmul's."""
        return self.matmul.shape

    @property
    def made(self) -> Shape:
        """The constants of the quantized rows that it makes."""
        return _row_shape(self.matmul.outputs // 2, self.row_format)


@dataclass(frozen=True, slots=True)
class LinearAppendSpec:
    """A matmul of stacked queries, keys and values, and what an `AppendSpec` does with them."""

    matmul: KernelSpec
    append: AppendSpec
    kind: Literal["linear_append"] = "linear_append"

    @property
    def symbol(self) -> str:
        """The C symbol, of those of the two."""
        return f"{self.matmul.symbol}_{self.append.symbol}"


@dataclass(frozen=True, slots=True)
class _RowsOfOneFormat:
    """A kernel that turns rows of K `inputs` into rows of the one format that its kind makes."""

    inputs: int
    kind: str

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_split_rows_k1024`."""
        return f"{self.algorithm}_k{self.inputs}"

    @property
    def algorithm(self) -> str:
        """The function of the headers that the kernel calls."""
        return f"pyc_{self.kind}"

    @property
    def shape(self) -> Shape:
        """The shape's constants; those of weights are 0."""
        return _row_shape(self.inputs, None)


@dataclass(frozen=True, slots=True)
class SplitSpec(_RowsOfOneFormat):
    """The kernel that turns rows of f32 into PIECES bf16 numbers each (templates/cpu/include/pyc_split_rows.h).

    For libraries that multiply tiles and batches of TILE_TOKENS or more.
    """

    kind: Literal["split_rows"] = "split_rows"

    @property
    def row_bytes(self) -> int:
        """The room that a row of `out` takes."""
        return split_bytes(self.inputs)

    @property
    def shape(self) -> Shape:
        """The shape's constants; those of weights are 0."""
        return replace(_row_shape(self.inputs, None), row_bytes=self.row_bytes, pieces=PIECES)


@dataclass(frozen=True, slots=True)
class RoundSpec(_RowsOfOneFormat):
    """The kernel that rounds rows to floating point of 8 bits, by the row or by blocks of 32 inputs; they stay f32.

    (templates/cpu/include/pyc_round_float8.h)
    """

    kind: Literal["round_fp8", "round_mxfp8"]


GATES = frozenset({"silu", "gelu_tanh"})
"""Activation functions of templates/cpu/include/pyc_gates.h."""


@dataclass(frozen=True, slots=True)
class QuantizeSpec:
    """The kernel that turns rows of K `inputs` into `row_format` (`backends.cpu.layouts`)."""

    inputs: int
    row_format: RowFormat
    kind: Literal["quantize_rows"] = "quantize_rows"

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_quantize_rows_power_of_two_k1024`."""
        return f"pyc_{self.kind}_{self.row_format}_k{self.inputs}"

    @property
    def algorithm(self) -> str:
        """The function of the headers that the kernel calls."""
        return f"pyc_{self.kind}_{self.row_format}"

    @property
    def row_bytes(self) -> int:
        """The room that a row of `out` takes."""
        return quantized_row_bytes(self.inputs, self.row_format)

    @property
    def shape(self) -> Shape:
        """The shape's constants; those of weights are 0."""
        return _row_shape(self.inputs, self.row_format)


def _row_shape(inputs: int, row_format: RowFormat | None) -> Shape:
    """The constants of a row of activations; f32 has no more."""
    blocks = ceil_div(inputs, BLOCK)
    if row_format is None or row_format == "bf16":
        row_bytes = 4 * inputs if row_format is None else quantized_row_bytes(inputs, row_format)
        return Shape(0, inputs, blocks, 0, 0, 0, 0, 0, 0, 0, row_bytes)
    row = activation_layout(inputs)
    return Shape(0, inputs, blocks, 0, 0, 0, 0, 0, row.corrections.offset, row.data.offset, row.row_bytes)


_RowsSpec = QuantizeSpec | SplitSpec | RoundSpec | AttentionSpec | AppendSpec | VarlenAttentionSpec
AnySpec = KernelSpec | GatedSpec | LinearAppendSpec | _RowsSpec
