"""Lower products that do not read f32: the activations become records of int8 or bf16 first, once a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.backends.cpu.layouts import record_bytes
from pyc.backends.cpu.records import Records, records_of
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.rewrite import map_functions, with_operations
from pyc.compiler.weights import Expression


@dataclass(frozen=True, slots=True)
class LowerActivations:
    """Rewrites linear to quantize_rows and linear_quantized where the weight's scheme asks for records.

    A value is quantized once for each kind of records that its users read.
    """

    name: ClassVar[str] = "lower_activations"
    version: ClassVar[int] = 3
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("integer-products",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with integer products."""
        return module.with_graph(map_functions(module.graph, lambda function: _lower(function, module)))


def _lower(function: Function, module: Module) -> Function:
    quantized: dict[tuple[str, Records], str] = {}
    operations: list[Operation] = []
    for operation in function.operations:
        records = _records(module.weights[operation.weights[0]]) if operation.kind == "linear" else None
        if records is None:
            operations.append(operation)
            continue
        source = operation.operands[0]
        features = module.weights[operation.weights[0]].shape[1]
        kind = ("records", records)
        name = quantized.get((source, records))
        if name is None:
            name = quantized[source, records] = f"{source}.{records}"
            value = Value(name, TensorType("u8", (operation.result.type.shape[0], record_bytes(features, records))))
            operations.append(Operation("quantize_rows", value, (source,), (), (kind,)))
        attributes = (("features", features), kind)
        product = Operation("linear_quantized", operation.result, (name,), operation.weights, attributes)
        operations.append(product)
    return with_operations(function, operations, {})


def _records(weight: Expression) -> Records | None:
    """Return the records that products with a weight read; None when they take f32 activations."""
    return records_of(stored_scheme(weight))
