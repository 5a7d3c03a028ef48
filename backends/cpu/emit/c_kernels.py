"""Which C kernel an operation is (`backends.cpu.kernels`), and what it is called with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from pyc.backends.cpu.constants import CACHE_BLOCK_TOKENS, TILE_TOKENS
from pyc.backends.cpu.emit.operands import embedding_kernel, matmul_kernel
from pyc.backends.cpu.emit.tir_kernels import Shapes
from pyc.backends.cpu.isa import GemmStrategy
from pyc.backends.cpu.kernels.attention import AppendSpec, AttentionSpec, CacheSpec, VarlenAttentionSpec
from pyc.backends.cpu.kernels.linear import (
    AnySpec,
    GatedSpec,
    KernelSpec,
    LinearAppendSpec,
    QuantizeSpec,
    RoundSpec,
    SplitSpec,
)
from pyc.backends.cpu.operators import rounds_attention
from pyc.backends.cpu.row_formats import RowFormat
from pyc.compiler.ir import Function, Operation

if TYPE_CHECKING:
    from pyc.backends.cpu.emit.program import ProgramBuilder


@dataclass(frozen=True, slots=True)
class CKernel:
    """A kernel, and the values, weights and caches that it is called with, by name; its result comes behind them.

    `is_own`: it is for libraries of one GEMM strategy alone. `alone`: the calling thread does it.
    """

    spec: AnySpec
    arguments: tuple[str, ...]
    is_own: bool = False
    alone: bool = False


class CKernels:
    """The C kernels of a function whose values have `shapes`, of libraries of a GEMM strategy."""

    def __init__(self, builder: ProgramBuilder, function: Function, shapes: Shapes, strategy: GemmStrategy) -> None:
        self._info, self._weights = builder.info, builder.weights
        self._shapes, self._has_amx = shapes, strategy == "amx"
        self._rounded = rounds_attention(operation.kind for operation in function.operations)

    def kernel(self, operation: Operation) -> CKernel | None:
        """Return that of an operation; None when it is one in TIR."""
        arguments = tuple(name for name in (*operation.operands, *operation.weights) if name)
        one_row = self._rows(operation) == 1
        match operation.kind:
            case "embedding":
                spec = embedding_kernel(self._weights[operation.weights[0]])
                return CKernel(spec, arguments, alone=one_row)
            case "linear" | "linear_quantized" | "linear_split":
                matmul = self._matmul(operation)
                return CKernel(matmul, arguments, is_own=matmul.amx)
            case "linear_gated_quantize":
                function = operation.text("function")
                gated = GatedSpec(self._matmul(operation), function, _row_format(operation, "makes"))
                return CKernel(gated, arguments, is_own=True)
            case "linear_append" | "linear_quantized_append":
                return self._linear_append(operation)
            case "quantize_rows":
                quantize = QuantizeSpec(self._width(operation), _row_format(operation))
                return CKernel(quantize, arguments, alone=one_row)
            case "round_fp8" | "round_mxfp8" as kind:
                return CKernel(RoundSpec(self._width(operation), kind), arguments, alone=one_row)
            case "split_rows":
                return CKernel(SplitSpec(self._width(operation)), arguments, is_own=True)
            case "qkv_append":
                return CKernel(self._append(operation), (*arguments, _cache_of(operation)))
            case "cached_attention" | "cached_attention_quantize":
                amx, into_quantized = self._by_amx(operation), operation.kind != "cached_attention"
                row_format = _row_format(operation) if into_quantized else None
                attention = AttentionSpec(self._cache(operation), row_format, amx=amx)
                return CKernel(attention, (*arguments, _cache_of(operation)), is_own=amx)
            case "qkv_span_attention":
                heads, head_dim = operation.integer("heads"), operation.integer("head_dim")
                return CKernel(VarlenAttentionSpec(heads, head_dim, operation.number("scale")), arguments)
            case _:
                return None

    def _rows(self, operation: Operation) -> int:
        return self._shapes[operation.result.name][0]

    def _width(self, operation: Operation) -> int:
        return self._shapes[operation.operands[0]][1]

    def _by_amx(self, operation: Operation) -> bool:
        """Whether AMX may do it."""
        return self._has_amx and self._rows(operation) >= TILE_TOKENS

    def _matmul(self, operation: Operation) -> KernelSpec:
        """Return the kernel of a matmul, or of that of a fused one."""
        weight, *bias = operation.weights
        spec = matmul_kernel(self._weights[weight], has_bias=any(bias[:1]))
        return replace(spec, amx=self._by_amx(operation) and operation.kind != "linear")

    def _linear_append(self, operation: Operation) -> CKernel:
        (x, *behind), (*matrix, q_gain, k_gain) = operation.operands, operation.weights
        names = (x, *matrix, *behind, q_gain, k_gain, _cache_of(operation))
        spec = LinearAppendSpec(self._matmul(operation), self._append(operation))
        return CKernel(spec, tuple(name for name in names if name), is_own=True)

    def _append(self, operation: Operation) -> AppendSpec:
        half, has_gain = self._shapes[operation.operands[1]][1] // 2, bool(operation.weights[-1])
        return AppendSpec(self._cache(operation), half, has_gain, operation.number("epsilon"))

    def _cache(self, operation: Operation) -> CacheSpec:
        """Return the constants of the cache: attention rounds where every matmul of the function does."""
        cache = self._info.kv_cache
        assert cache is not None
        assert cache.block_tokens == CACHE_BLOCK_TOKENS, f"blocks of {cache.block_tokens} positions have no kernels"
        attributes = dict(operation.attributes)
        return CacheSpec(
            operation.integer("heads"),
            cache.heads,
            cache.head_dim,
            self._shapes["block_table"][1],
            operation.integer("window") if "window" in attributes else 0,
            cache.dtype,
            operation.number("scale") if "scale" in attributes else 1.0,
            rounded=self._rounded,
        )


def _row_format(operation: Operation, key: str = "row_format") -> RowFormat:
    return cast(RowFormat, operation.text(key))


def _cache_of(operation: Operation) -> str:
    """Return the parameter that is the cache of the operation's layer."""
    return f"kv_{operation.integer('layer')}"
