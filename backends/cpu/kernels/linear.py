"""The C kernels of a CPU library: what each one is. `backends.cpu.kernels.translation_units` compiles them.

A kernel is a frozen `KernelSpec`; its symbol follows from its content, so equal specs are one function. All
return int32 0. With m tokens, N outputs, K inputs, weights in panels (`backends.cpu.layouts`) and every pointer
aligned to 64 bytes, the signatures are:

- linear:                   f(const void *x, const uint8_t *w, const float *bias [N], float *y [m, N]);
                              x is f32 [m, K], or u8 [m, record_bytes] of `quantize_rows` or `split_rows` for m rows
- linear_gated:             f(const uint8_t *x [m, record_bytes], const uint8_t *w, uint8_t *out [m, record_bytes])
- linear_append:            f(x, w, bias as of linear, then angles and all that follows of qkv_append)
- embedding:                f(const int32_t *ids [m], const uint8_t *table, float *y [m, K])
- quantize_rows, split_rows: f(const float *x [m, K], uint8_t *out [m, record_bytes])
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

from dataclasses import dataclass, replace
from typing import Literal

from pyc.backends.cpu.kernels.attention import AppendSpec, AttentionSpec, SpanAttentionSpec, rows_constant
from pyc.backends.cpu.layouts import PIECES, activation_layout, panel_layout, record_bytes, split_bytes
from pyc.backends.cpu.records import Records, records_of
from pyc.compiler.quantization import BLOCK
from pyc.compiler.schemes import Dense, Int4Group, Int8Group, Scheme
from pyc.runtime.host.rounding import ceil_div

KernelKind = Literal["linear", "embedding"]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The constants of `struct pyc_shape` (templates/cpu/include/pyc_tiles.h), in its order."""

    outputs: int
    inputs: int
    blocks: int
    group_blocks: int
    zeros: int
    bases: int
    data: int
    panel_bytes: int
    row_starts: int
    row_data: int
    row_bytes: int
    pieces: int = 1
    tiles: bool = False


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel that reads packed weights: `kind`, N `outputs`, K `inputs` and the weight's scheme.

    `tiles`: a product by the tile unit, for libraries that have it and batches of TILE_TOKENS or more.
    """

    kind: KernelKind
    outputs: int
    inputs: int
    scheme: Scheme
    has_bias: bool = False
    tiles: bool = False

    @property
    def records(self) -> Records | None:
        """The kind of records that a product reads; None: f32 activations, or no product."""
        return records_of(self.scheme) if self.kind == "linear" else None

    @property
    def splits(self) -> bool:
        """Whether the tile unit multiplies it exactly, by activations f32 that are split (`SplitSpec`)."""
        floats = self.kind == "linear" and self.records is None
        return floats and isinstance(self.scheme, Dense) and self.scheme.name == "bf16"

    @property
    def is_integer_by_vectors(self) -> bool:
        """Whether it is a product of integers, and not one by the tile unit."""
        return self.records in ("exact", "binary", "tiled") and not self.tiles

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_linear_int4_g32_n4096_k1024`."""
        return self._name(f"_n{self.outputs}")

    @property
    def core(self) -> str:
        """The C function that products have in common which differ in N alone."""
        return self._name("")

    def _name(self, outputs: str) -> str:
        name = self.scheme.name.replace("-", "_")
        tail = ("_bias" if self.has_bias else "") + ("_tiles" if self.tiles else "")
        return f"pyc_{self.kind}_{name}{outputs}_k{self.inputs}{self._activations}{tail}"

    @property
    def _activations(self) -> str:
        """A part of the symbol: what a product multiplies with, where that is not usual for the scheme."""
        dense = isinstance(self.scheme, Dense)
        if self.kind != "linear" or dense == (self.records is None):
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
            case _:
                return self.scheme.name

    @property
    def algorithm(self) -> str:
        """The function of the headers that the kernel calls; one for all `panel`s where the tile unit multiplies."""
        tail = {"": "", "_x_bf16": "_rounded", "_x_f32": "_float"}[self._activations]
        return "pyc_linear_amx" if self.tiles else f"pyc_{self.kind}_{self.family}{tail}"

    @property
    def panel(self) -> str:
        """The C constant of what the weight's panels hold."""
        return f"PYC_PANEL_{self.family.upper()}"

    @property
    def shape(self) -> Shape:
        """The shape's constants; raises QuantizeError when the scheme's groups do not divide K."""
        layout = panel_layout(self.scheme, self.inputs)
        split = self.tiles and self.splits
        return replace(
            SplitSpec(self.inputs).shape if split else _record_shape(self.inputs, self.records),
            outputs=self.outputs,
            group_blocks=self.scheme.group_size // BLOCK if isinstance(self.scheme, Int4Group | Int8Group) else 1,
            zeros=layout.zeros.offset if layout.zeros else 0,
            bases=layout.bases.offset if layout.bases else 0,
            data=layout.data.offset,
            panel_bytes=layout.panel_bytes,
            tiles=self.tiles,
        )


@dataclass(frozen=True, slots=True)
class GatedSpec:
    """A product of N / 2 gates and as many values, into `records` of act(gate) * value, act being `function`.

    For products by the tile unit (templates/cpu/include/pyc_linear_amx.h), and for libraries that fold
    (templates/cpu/include/pyc_linear_gated.h), with batches of whole tiles of records.
    """

    product: KernelSpec
    function: str
    records: Records
    kind: Literal["linear_gated"] = "linear_gated"

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_linear_int4_g32_n6144_k1024_tiles_silu_tiled`."""
        return f"{self.product.symbol}_{self.function}_{self.records}"

    @property
    def gate(self) -> str:
        """The C constant of the activation function."""
        return f"PYC_GATE_{self.function.upper()}"

    @property
    def result(self) -> str:
        """The C constant of what the result is."""
        return rows_constant(self.records)

    @property
    def shape(self) -> Shape:
        """The shape's constants: the product's."""
        return self.product.shape

    @property
    def made(self) -> Shape:
        """The constants of the records that it makes."""
        return _record_shape(self.product.outputs // 2, self.records)


@dataclass(frozen=True, slots=True)
class LinearAppendSpec:
    """A product of stacked queries, keys and values, and what an `AppendSpec` does with them."""

    product: KernelSpec
    append: AppendSpec
    kind: Literal["linear_append"] = "linear_append"

    @property
    def symbol(self) -> str:
        """The C symbol, of those of the two."""
        return f"{self.product.symbol}_{self.append.symbol}"


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """The kernel that turns rows of K `inputs` into PIECES bf16 numbers each (templates/cpu/include/pyc_split_rows.h).

    For libraries that multiply tiles and batches of TILE_TOKENS or more.
    """

    inputs: int
    kind: Literal["split_rows"] = "split_rows"

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_split_rows_k1024`."""
        return f"pyc_{self.kind}_k{self.inputs}"

    @property
    def algorithm(self) -> str:
        """The function of the headers that the kernel calls."""
        return f"pyc_{self.kind}"

    @property
    def record_bytes(self) -> int:
        """The room of a record; a row of `out` takes so much."""
        return split_bytes(self.inputs)

    @property
    def shape(self) -> Shape:
        """The shape's constants; those of weights are 0."""
        return replace(_record_shape(self.inputs, None), row_bytes=self.record_bytes, pieces=PIECES)


GATES = frozenset({"silu", "gelu_tanh"})
"""Activation functions of templates/cpu/include/pyc_gates.h."""


@dataclass(frozen=True, slots=True)
class QuantizeSpec:
    """The kernel that turns rows of K `inputs` into `records` (`backends.cpu.layouts`)."""

    inputs: int
    records: Records
    kind: Literal["quantize_rows"] = "quantize_rows"

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_quantize_rows_binary_k1024`."""
        return f"pyc_{self.kind}_{self.records}_k{self.inputs}"

    @property
    def algorithm(self) -> str:
        """The function of the headers that the kernel calls."""
        return f"pyc_{self.kind}_{self.records}"

    @property
    def record_bytes(self) -> int:
        """The room of a record; a row of `out` takes so much."""
        return record_bytes(self.inputs, self.records)

    @property
    def shape(self) -> Shape:
        """The shape's constants; those of weights are 0."""
        return _record_shape(self.inputs, self.records)


def _record_shape(inputs: int, records: Records | None) -> Shape:
    """The constants of a row of activations; f32 has no record."""
    blocks = ceil_div(inputs, BLOCK)
    if records is None or records == "bf16":
        row_bytes = 4 * inputs if records is None else record_bytes(inputs, records)
        return Shape(0, inputs, blocks, 0, 0, 0, 0, 0, 0, 0, row_bytes)
    row = activation_layout(inputs)
    return Shape(0, inputs, blocks, 0, 0, 0, 0, 0, row.starts.offset, row.data.offset, row.row_bytes)


_RowsSpec = QuantizeSpec | SplitSpec | AttentionSpec | AppendSpec | SpanAttentionSpec
AnySpec = KernelSpec | GatedSpec | LinearAppendSpec | _RowsSpec
