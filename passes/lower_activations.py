"""Lower products of quantized weights to integer arithmetic: the activations are quantized first, once a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.layouts import activation_layout
from pyc.compiler.rewrite import map_functions, with_operations
from pyc.compiler.schemes import ActivationScales, Dense, activation_scales
from pyc.compiler.weights import Expression, Stacked, Stored


@dataclass(frozen=True, slots=True)
class LowerActivations:
    """Rewrites linear to quantize_rows and linear_quantized where the weight's scheme asks for int8 activations.

    A value is quantized once for each kind of scales that its users read.
    """

    name: ClassVar[str] = "lower_activations"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("integer-products",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with integer products."""
        return module.with_graph(map_functions(module.graph, lambda function: _lower(function, module)))


def _lower(function: Function, module: Module) -> Function:
    quantized: dict[tuple[str, str], str] = {}
    operations: list[Operation] = []
    for operation in function.operations:
        scales = _scales(module.weights[operation.weights[0]]) if operation.kind == "linear" else None
        if scales is None:
            operations.append(operation)
            continue
        source = operation.operands[0]
        features = module.weights[operation.weights[0]].shape[1]
        record = quantized.get((source, scales))
        if record is None:
            record = quantized[source, scales] = f"{source}.int8" + (".binary" if scales == "binary" else "")
            rows = operation.result.type.shape[0]
            value = Value(record, TensorType("u8", (rows, activation_layout(features).row_bytes)))
            operations.append(Operation("quantize_rows", value, (source,), (), (("scales", scales),)))
        operations.append(
            Operation(
                "linear_quantized",
                operation.result,
                (record,),
                operation.weights,
                (("features", features),),
            )
        )
    return with_operations(function, operations, {})


def _scales(weight: Expression) -> ActivationScales | None:
    """Return the scales that products with a weight read; None when they take f32 activations."""
    stored = weight.parts[0] if isinstance(weight, Stacked) else weight
    assert isinstance(stored, Stored)
    if isinstance(stored.scheme, Dense) or stored.scheme.activations != "int8":
        return None
    return activation_scales(stored.scheme)
