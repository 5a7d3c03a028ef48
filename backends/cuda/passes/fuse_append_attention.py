"""Fuse appending to the cache with the attention that reads what was appended: fewer launches of small batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import map_functions, only_readers, with_replaced


@dataclass(frozen=True, slots=True)
class FuseAppendAttention:
    """Rewrites qkv_append and the cached_attention that alone reads its queries, of the same rows, to
    append_attention."""

    name: ClassVar[str] = "fuse_append_attention"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("attention-lowered", "prompt")
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module in which only attention to selected rows has an operation of its own."""
        return module.with_graph(map_functions(module.graph, _fuse))


def _fuse(function: Function) -> Function:
    readers = only_readers(function)
    replaced: dict[str, Operation | None] = {}
    for append in function.operations:
        attend = readers.get(append.result.name)
        if append.kind != "qkv_append" or attend is None or attend.kind != "cached_attention":
            continue
        if attend.operands[1:] != append.operands[2:]:
            continue
        attributes = tuple(sorted({**dict(append.attributes), **dict(attend.attributes)}.items()))
        fused = Operation("append_attention", attend.result, append.operands, append.weights, attributes)
        replaced |= {append.result.name: None, attend.result.name: fused}
    return with_replaced(function, replaced)
