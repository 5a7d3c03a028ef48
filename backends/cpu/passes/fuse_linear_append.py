"""Fuse the product of stacked queries, keys and values with appending to the cache, for products with folded scales.

They make their result in strips of outputs (ADR 13). The kernel appends a strip while the cache of its core has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.versions import rewrite_version
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import only_readers, with_replaced

_PRODUCTS = frozenset({"linear", "linear_quantized"})


@dataclass(frozen=True, slots=True)
class FuseLinearAppend:
    """Rewrites a product and the qkv_append that alone reads it to one, in versions "folded".

    A head's features must be whole panels, and the rows those of a batch.
    """

    name: ClassVar[str] = "fuse_linear_append"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("attention-lowered", "integer-products", "prompt")
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with versions "folded" of functions that append."""
        return module.with_graph(rewrite_version(module.graph, "folded", _fuse))


def _fuse(function: Function) -> Function:
    readers = only_readers(function)
    replaced: dict[str, Operation | None] = {}
    for product in function.operations:
        append = readers.get(product.result.name)
        if product.kind not in _PRODUCTS or append is None or append.kind != "qkv_append":
            continue
        if product.result.type.shape[0] != "tokens" or append.integer("head_dim") % LANES:
            continue
        replaced[product.result.name] = None
        replaced[append.result.name] = Operation(
            f"{product.kind}_append",
            append.result,
            (*product.operands, *append.operands[1:]),
            (*product.weights, *append.weights),
            tuple(sorted(product.attributes + append.attributes)),
        )
    return with_replaced(function, replaced)
