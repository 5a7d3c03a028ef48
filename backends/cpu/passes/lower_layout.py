"""Lower matrices to the byte layout that kernels read: panels of 16 rows (`backends.cpu.layouts`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.backends.cpu.layouts import PANEL16
from pyc.backends.cpu.operators import ALL_OPERATORS
from pyc.compiler.ir import Module
from pyc.compiler.weights import Packed


@dataclass(frozen=True, slots=True)
class LowerLayout:
    """Wraps the matrices of matmuls and embeddings in Packed."""

    name: ClassVar[str] = "lower_layout"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("packed",)

    def options(self) -> dict[str, str]:
        """The layout's name."""
        return {"layout": PANEL16}

    def run(self, module: Module) -> Module:
        """Return the module with packed matrices."""
        names = {
            operation.weights[0]
            for function in module.graph.functions
            for operation in function.operations
            if ALL_OPERATORS[operation.kind].has_matrix
        }
        weights = {
            name: Packed(weight, PANEL16) if name in names else weight for name, weight in module.weights.items()
        }
        return module.with_graph(module.graph, weights)
