"""Builds functions of the IR one operation at a time, with every type inferred."""

from __future__ import annotations

from collections.abc import Mapping

from pyc.compiler.ir import Dimension, Function, Operation, Scalar, TensorType, Value
from pyc.compiler.operators import infer_type


class FunctionBuilder:
    """Collects the operations of one function.

    `weight_shapes` gives the shape of every weight that may be named. Values are called %0, %1, ...;
    parameters keep their names.
    """

    def __init__(self, name: str, weight_shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._name = name
        self._weight_shapes = weight_shapes
        self._parameters: list[Value] = []
        self._operations: list[Operation] = []
        self._types: dict[str, TensorType] = {}

    def parameter(self, name: str, dtype: str, *shape: Dimension) -> str:
        """Declare a parameter and return its name."""
        value = Value(name, TensorType(dtype, shape))
        self._parameters.append(value)
        self._types[name] = value.type
        return name

    def emit(self, kind: str, *operands: str, weights: tuple[str, ...] = (), **attributes: Scalar) -> str:
        """Append one operation and return the name of its result.

        An empty weight name stands for an absent optional weight. Raises ValueError when the types do not fit.
        """
        shapes = tuple(self._weight_shapes[name] if name else None for name in weights)
        result_type = infer_type(kind, tuple(self._types[name] for name in operands), shapes, attributes)
        result = Value(f"%{len(self._operations)}", result_type)
        self._operations.append(Operation(kind, result, operands, weights, tuple(sorted(attributes.items()))))
        self._types[result.name] = result_type
        return result.name

    def finish(self, result: str) -> Function:
        """Return the function that computes `result`."""
        return Function(self._name, tuple(self._parameters), tuple(self._operations), result)
