"""Lower matmuls that do not read f32: the activations become quantized rows of int8 or bf16 first, once a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.backends.cpu.layouts import quantized_row_bytes
from pyc.backends.cpu.row_formats import RowFormat, row_format_of
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.rewrite import map_functions, with_operations
from pyc.compiler.weights import Expression


@dataclass(frozen=True, slots=True)
class LowerActivations:
    """Rewrites linear to quantize_rows and linear_quantized where the weight's scheme asks for it.

    A value is quantized once for each format that its users read.
    """

    name: ClassVar[str] = "lower_activations"
    version: ClassVar[int] = 3
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("integer-matmuls",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with integer matmuls."""
        return module.with_graph(map_functions(module.graph, lambda function: _lower(function, module)))


def _lower(function: Function, module: Module) -> Function:
    quantized: dict[tuple[str, RowFormat], str] = {}
    operations: list[Operation] = []
    for operation in function.operations:
        row_format = _row_format(module.weights[operation.weights[0]]) if operation.kind == "linear" else None
        if row_format is None:
            operations.append(operation)
            continue
        source = operation.operands[0]
        features = module.weights[operation.weights[0]].shape[1]
        kind = ("row_format", row_format)
        name = quantized.get((source, row_format))
        if name is None:
            name = quantized[source, row_format] = f"{source}.{row_format}"
            rows, width = operation.result.type.shape[0], quantized_row_bytes(features, row_format)
            value = Value(name, TensorType("u8", (rows, width)))
            operations.append(Operation("quantize_rows", value, (source,), (), (kind,)))
        attributes = (("features", features), kind)
        matmul = Operation("linear_quantized", operation.result, (name,), operation.weights, attributes)
        operations.append(matmul)
    return with_operations(function, operations, {})


def _row_format(weight: Expression) -> RowFormat | None:
    """Return the format of the rows that matmuls with a weight read; None when they take f32 activations."""
    return row_format_of(stored_scheme(weight))
