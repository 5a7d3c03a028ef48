"""Lower products of quantized weights to integer arithmetic: the activations are quantized first, once a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.layouts import activation_layout
from pyc.compiler.rewrite import map_functions, with_operations
from pyc.compiler.schemes import Dense
from pyc.compiler.weights import Expression, Stacked, Stored


@dataclass(frozen=True, slots=True)
class LowerActivations:
    """Rewrites linear to quantize_rows and linear_quantized where the weight's scheme asks for int8 activations."""

    name: ClassVar[str] = "lower_activations"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("integer-products",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with integer products."""
        return module.with_graph(map_functions(module.graph, lambda function: _lower(function, module)))


def _lower(function: Function, module: Module) -> Function:
    quantized: dict[str, str] = {}
    operations: list[Operation] = []
    for operation in function.operations:
        if operation.kind != "linear" or not _wants_int8(module.weights[operation.weights[0]]):
            operations.append(operation)
            continue
        source = operation.operands[0]
        features = module.weights[operation.weights[0]].shape[1]
        if source not in quantized:
            quantized[source] = source + ".int8"
            rows = operation.result.type.shape[0]
            value = Value(quantized[source], TensorType("u8", (rows, activation_layout(features).row_bytes)))
            operations.append(Operation("quantize_rows", value, (source,)))
        operations.append(
            Operation(
                "linear_quantized",
                operation.result,
                (quantized[source],),
                operation.weights,
                (("features", features),),
            )
        )
    return with_operations(function, operations, {})


def _wants_int8(weight: Expression) -> bool:
    stored = weight.parts[0] if isinstance(weight, Stacked) else weight
    assert isinstance(stored, Stored)
    return not isinstance(stored.scheme, Dense) and stored.scheme.activations == "int8"
