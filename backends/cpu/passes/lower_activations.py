"""Lower matmuls that do not read f32 as it is: the activations become quantized rows of int8 or bf16 first, or are
rounded to floating point of 8 bits, once a value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.backends.cpu.layouts import quantized_row_bytes
from pyc.backends.cpu.row_formats import Rounding, RowFormat, rounding_of, row_format_of
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.rewrite import map_functions, with_operations


@dataclass(frozen=True, slots=True)
class LowerActivations:
    """Rewrites linear as the weight's scheme asks: to quantize_rows and linear_quantized, or to round_fp8 or
    round_mxfp8 and linear.

    A value is quantized or rounded once for each format that its users read.
    """

    name: ClassVar[str] = "lower_activations"
    version: ClassVar[int] = 4
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("integer-matmuls",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with integer matmuls."""
        return module.with_graph(map_functions(module.graph, lambda function: _lower(function, module)))


def _lower(function: Function, module: Module) -> Function:
    made: dict[tuple[str, RowFormat | Rounding], str] = {}
    operations: list[Operation] = []

    def rows_of(operation: Operation, features: int, form: RowFormat | Rounding) -> str:
        """Return what a matmul reads: its operand as quantized rows, or rounded."""
        (source,), rows = operation.operands, operation.result.type.shape[0]
        if (source, form) not in made:
            name = made[source, form] = f"{source}.{form}"
            if form == "fp8" or form == "mxfp8":
                value = Value(name, TensorType("f32", (rows, features)))
                operations.append(Operation(f"round_{form}", value, (source,)))
            else:
                value = Value(name, TensorType("u8", (rows, quantized_row_bytes(features, form))))
                operations.append(Operation("quantize_rows", value, (source,), (), (("row_format", form),)))
        return made[source, form]

    for operation in function.operations:
        if operation.kind != "linear":
            operations.append(operation)
            continue
        weight = module.weights[operation.weights[0]]
        scheme, features = stored_scheme(weight), weight.shape[1]
        row_format = row_format_of(scheme)
        if (rounding := rounding_of(scheme)) is not None:
            operations.append(replace(operation, operands=(rows_of(operation, features, rounding),)))
        elif row_format is None:
            operations.append(operation)
        else:
            quantized = rows_of(operation, features, row_format)
            attributes = (("features", features), ("row_format", row_format))
            matmul = Operation("linear_quantized", operation.result, (quantized,), operation.weights, attributes)
            operations.append(matmul)
    return with_operations(function, operations, {})
