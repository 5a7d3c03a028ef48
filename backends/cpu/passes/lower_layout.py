"""Lower matrices to the byte layout that kernels read: panels of 16 rows (`compiler.layouts`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Module
from pyc.compiler.weights import Packed

_PACKED_OPERATORS = ("linear", "linear_quantized", "embedding")


@dataclass(frozen=True, slots=True)
class LowerLayout:
    """Wraps the matrices of products and embeddings in Packed."""

    name: ClassVar[str] = "lower_layout"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("packed",)

    def options(self) -> dict[str, str]:
        """The layout's name."""
        return {"layout": "panel16"}

    def run(self, module: Module) -> Module:
        """Return the module with packed matrices."""
        names = {
            operation.weights[0]
            for function in module.graph.functions
            for operation in function.operations
            if operation.kind in _PACKED_OPERATORS
        }
        weights = {
            name: Packed(weight, "panel16") if name in names else weight for name, weight in module.weights.items()
        }
        return module.with_graph(module.graph, weights)
