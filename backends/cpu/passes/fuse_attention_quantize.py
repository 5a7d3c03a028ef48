"""Fuse attention with the quantizer of its result, for libraries that attend by AMX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.backends.cpu.passes.fuse_quantize import quantizing
from pyc.backends.cpu.versions import rewrite_version
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.quantization import BLOCK
from pyc.compiler.rewrite import only_readers, with_replaced


@dataclass(frozen=True, slots=True)
class FuseAttentionQuantize:
    """Rewrites cached_attention and the quantize_rows that alone reads it to one, in versions "amx".

    A head's features must be whole groups that share a scale, and the rows those of a batch.
    """

    name: ClassVar[str] = "fuse_attention_quantize"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("attention-lowered", "integer-matmuls", "prompt")
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with versions "amx" of functions that attend."""
        return module.with_graph(rewrite_version(module.graph, "amx", _fuse))


def _fuse(function: Function) -> Function:
    readers = only_readers(function)
    replaced: dict[str, Operation | None] = {}
    for attention in function.operations:
        quantize = readers.get(attention.result.name)
        if attention.kind != "cached_attention" or quantize is None or quantize.kind != "quantize_rows":
            continue
        if quantize.result.type.shape[0] == "tokens" and attention.integer("head_dim") % BLOCK == 0:
            replaced[attention.result.name] = quantizing(attention, quantize)
            replaced[quantize.result.name] = None
    return with_replaced(function, replaced)
