"""Fuse the matmul of stacked queries, keys and values with appending to the cache, for matmuls with folded scales.

They make their result in N tiles (ADR 13). The kernel appends an N tile while the cache of its core has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.versions import rewrite_version
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import only_readers, with_replaced

_MATMULS = frozenset({"linear", "linear_quantized"})


@dataclass(frozen=True, slots=True)
class FuseLinearAppend:
    """Rewrites a matmul and the qkv_append that alone reads it to one, in versions "scale_folded".

    A head's features must be whole panels, and the rows those of a batch.
    """

    name: ClassVar[str] = "fuse_linear_append"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("attention-lowered", "integer-matmuls", "prompt")
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with versions "scale_folded" of functions that append."""
        return module.with_graph(rewrite_version(module.graph, "scale_folded", _fuse))


def _fuse(function: Function) -> Function:
    readers = only_readers(function)
    replaced: dict[str, Operation | None] = {}
    for matmul in function.operations:
        append = readers.get(matmul.result.name)
        if matmul.kind not in _MATMULS or append is None or append.kind != "qkv_append":
            continue
        if matmul.result.type.shape[0] != "tokens" or append.integer("head_dim") % LANES:
            continue
        replaced[matmul.result.name] = None
        replaced[append.result.name] = Operation(
            f"{matmul.kind}_append",
            append.result,
            (*matmul.operands, *append.operands[1:]),
            (*matmul.weights, *append.weights),
            tuple(sorted(matmul.attributes + append.attributes)),
        )
    return with_replaced(function, replaced)
