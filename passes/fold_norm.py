"""Fold the gain of an RMS norm into the linear layers that read it: W (g * n) = (W diag(g)) n.

Only where nothing is lost: every reader of the norm is a linear layer, no other operation reads those weights,
and they are quantized or stored as f32, so that the product is not rounded to a short float a second time. Not into
mxfp4, nvfp4 and ternary, which are for models that have such weights: columns that are multiplied would have others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.compiler.evaluate import is_kept
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.operands import sources
from pyc.compiler.rewrite import map_functions, weight_readers, with_operations
from pyc.compiler.schemes import Dense, LookupGroup
from pyc.compiler.weights import Expression, ScaledColumns, Stored


@dataclass(frozen=True, slots=True)
class FoldNorm:
    """Moves gains of rms_norm into the columns of the weights that follow."""

    name: ClassVar[str] = "fold_norm"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("stored",)
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with gains folded where that is exact up to the final rounding."""
        weights = dict(module.weights)

        def fold(function: Function) -> Function:
            users = function.users()
            operations: list[Operation] = []
            for operation in function.operations:
                readers = users.get(operation.result.name, ())
                if function.result != operation.result.name and self._foldable(module, operation, readers):
                    gain = module.weights[operation.weights[0]]
                    assert isinstance(gain, Stored)
                    for reader in readers:
                        weights[reader.weights[0]] = _scaled(weights[reader.weights[0]], gain.base)
                    operation = replace(operation, weights=("",))
                operations.append(operation)
            return with_operations(function, operations, {})

        graph = map_functions(module.graph, fold)
        return module.with_graph(graph, weights)

    def _foldable(self, module: Module, norm: Operation, readers: tuple[Operation, ...]) -> bool:
        if norm.kind != "rms_norm" or not norm.weights[0] or not readers:
            return False
        return all(
            reader.kind == "linear"
            and len(weight_readers(module.graph, reader.weights[0])) == 1
            and _absorbs(module.weights[reader.weights[0]])
            for reader in readers
        )


def _absorbs(weight: Expression) -> bool:
    """Say whether multiplying columns into this stored weight costs no extra rounding."""
    assert isinstance(weight, Stored)
    if isinstance(weight.scheme, LookupGroup) and weight.scheme.scales != "short":
        return False
    if not isinstance(weight.scheme, Dense):
        return not is_kept(weight)
    kept = {source.dtype for source in sources(weight.base)}
    return weight.scheme.dtype == "f32" or (weight.scheme.dtype is None and kept <= {"f32", "f64"})


def _scaled(weight: Expression, gain: Expression) -> Stored:
    assert isinstance(weight, Stored)
    return replace(weight, base=ScaledColumns(weight.base, gain))
