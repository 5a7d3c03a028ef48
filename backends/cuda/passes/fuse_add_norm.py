"""Fuse additions with the norm behind them, whose kernel adds first: a residual's sum, and its norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import map_functions, with_replaced

_NORMS = frozenset({"rms_norm", "layer_norm"})


@dataclass(frozen=True, slots=True)
class FuseAddNorm:
    """Rewrites add and the norm that is the first to read the sum to add_X; the sum becomes its second result."""

    name: ClassVar[str] = "fuse_add_norm"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("prompt",)
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module without additions that kernels of norms do."""
        return module.with_graph(map_functions(module.graph, _fuse))


def _fuse(function: Function) -> Function:
    places = {operation.result.name: index for index, operation in enumerate(function.operations)}
    replaced: dict[str, Operation | None] = {}
    for index, norm in enumerate(function.operations):
        at = places.get(norm.operands[0], index)
        total, between = function.operations[at], function.operations[at + 1 : index]
        if norm.kind not in _NORMS or total.kind != "add" or any(total.result.name in o.operands for o in between):
            continue
        fused = Operation(
            f"add_{norm.kind}", norm.result, total.operands, norm.weights, norm.attributes, (total.result,)
        )
        replaced |= {norm.result.name: fused, total.result.name: None}
    return with_replaced(function, replaced)
