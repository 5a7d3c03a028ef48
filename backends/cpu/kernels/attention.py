"""The C kernels of attention and of its cache, each a frozen spec, as `kernels.linear` has those of matmuls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyc.backends.cpu.row_formats import RowFormat
from pyc.runtime.artifact.format import KvDtype


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The constants of `struct pyc_attention` (templates/cpu/include/pyc_cache.h).

    `rounded`: 16 bits of the cache may be bf16, and attention over it may round queries and weights to bf16, where the
    instruction set multiplies pairs of them.
    """

    heads: int
    kv_heads: int
    head_dim: int
    table_width: int
    window: int
    dtype: KvDtype
    scale: float
    rounded: bool = False

    @property
    def kind(self) -> str:
        """The C constant of what the cache holds."""
        if self.dtype == "f16" and self.rounded:
            return "PYC_CACHE_ROUNDED"
        return f"PYC_CACHE_{self.dtype.upper()}"

    @property
    def name(self) -> str:
        """A part of a symbol, such as `h16_kv8_d128_t256_w0_f16_0x1p-3`; the scale is exact in it."""
        sizes = f"h{self.heads}_kv{self.kv_heads}_d{self.head_dim}_t{self.table_width}_w{self.window}"
        return f"{sizes}_{self.dtype}{'_rounded' if self.rounded else ''}_{_hex_name(self.scale)}"

    @property
    def scale_literal(self) -> str:
        """The scale as a C constant, rounded to f32."""
        return _literal(self.scale)


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention over the paged cache; into `row_format`, as a `GatedSpec` does, where they are given.

    `amx`: for batches of TILE_TOKENS or more, by AMX where the cache has something that it multiplies.
    """

    cache: CacheSpec
    row_format: RowFormat | None = None
    amx: bool = False
    kind: Literal["attention"] = "attention"

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_attention_h16_kv8_d128_t256_w0_f16_0x1p-3`."""
        tail = ("_amx" if self.amx else "") + (f"_{self.row_format}" if self.row_format else "")
        return f"pyc_attention_{self.cache.name}{tail}"

    @property
    def result(self) -> str:
        """The C constant of what the result is."""
        return rows_constant(self.row_format)


@dataclass(frozen=True, slots=True)
class AppendSpec:
    """Keys and values into the cache, and rotated queries: `half` pairs rotate; `epsilon` of the heads' norms."""

    cache: CacheSpec
    half: int
    has_gain: bool
    epsilon: float
    kind: Literal["qkv_append"] = "qkv_append"

    @property
    def symbol(self) -> str:
        """The C symbol; epsilon is exact in it."""
        gain = f"_gain_{_hex_name(self.epsilon)}" if self.has_gain else ""
        return f"pyc_qkv_append_{self.cache.name}_r{self.half}{gain}"

    @property
    def epsilon_literal(self) -> str:
        """Epsilon as a C constant, rounded to f32."""
        return _literal(self.epsilon)


@dataclass(frozen=True, slots=True)
class VarlenAttentionSpec:
    """Attention of an encoder's rows over the rows of the same span."""

    heads: int
    head_dim: int
    scale: float
    kind: Literal["span_attention"] = "span_attention"

    @property
    def symbol(self) -> str:
        """The C symbol, such as `pyc_span_attention_h12_d32_0x1p-3`; the scale is exact in it."""
        return f"pyc_span_attention_h{self.heads}_d{self.head_dim}_{_hex_name(self.scale)}"

    @property
    def scale_literal(self) -> str:
        """The scale as a C constant, rounded to f32."""
        return _literal(self.scale)


def rows_constant(row_format: RowFormat | None) -> str:
    """Return the constant of templates/cpu/include/pyc_cache.h for rows of f32 or quantized ones of AMX."""
    if row_format is None:
        return "PYC_ROWS_F32"
    return "PYC_ROWS_PAIRS" if row_format == "bf16" else "PYC_ROWS_CODES"


def _literal(number: float) -> str:
    return f"((float){number.hex()})"


def _hex_name(number: float) -> str:
    return number.hex().replace(".", "_").replace("-", "m").replace("+", "")
