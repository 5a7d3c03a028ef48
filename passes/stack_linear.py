"""Stack linear layers that read the same value: Q, K and V become one product, gate and up another.

One larger product reads its input once and starts one parallel region instead of three. Rows of a weight are
quantized independently, so stacking the stored rows changes no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.rewrite import map_functions, weight_readers, with_operations
from pyc.compiler.weights import Expression, Stacked, Stored


@dataclass(frozen=True, slots=True)
class StackLinear:
    """Replaces linear layers of one operand, scheme and algorithm, one reader each, by a stacked one and slices."""

    name: ClassVar[str] = "stack_linear"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("stored",)
    provides: ClassVar[tuple[str, ...]] = ("stacked",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with parallel linear layers stacked."""
        weights = dict(module.weights)
        graph = map_functions(module.graph, lambda function: _stack_function(function, module, weights))
        return module.with_graph(graph, weights)


def _stack_function(function: Function, module: Module, weights: dict[str, Expression]) -> Function:
    groups: dict[tuple[str, str, bool], list[Operation]] = {}
    for operation in function.operations:
        if operation.kind == "linear" and len(weight_readers(module.graph, operation.weights[0])) == 1:
            weight = module.weights[operation.weights[0]]
            assert isinstance(weight, Stored)
            stored = repr((weight.scheme, weight.algorithm))
            key = (operation.operands[0], stored, bool(operation.weights[1]))
            groups.setdefault(key, []).append(operation)
    replaced: dict[str, list[Operation]] = {}
    for members in groups.values():
        if len(members) > 1:
            replaced[members[0].result.name] = _stacked(members, weights)
            replaced.update({member.result.name: [] for member in members[1:]})
    operations: list[Operation] = []
    for operation in function.operations:
        operations += replaced.get(operation.result.name, [operation])
    return with_operations(function, operations, {})


def _stacked(members: list[Operation], weights: dict[str, Expression]) -> list[Operation]:
    """Return the stacked product and a slice for each member, adding its weights to the table."""
    names = [member.weights[0] for member in members]
    weight_name = _joined([name.removesuffix(".weight") for name in names]) + ".weight"
    weights[weight_name] = Stacked(tuple(weights[name] for name in names))
    bias_name = ""
    if members[0].weights[1]:
        bias_name = weight_name.removesuffix(".weight") + ".bias"
        weights[bias_name] = Stacked(tuple(weights[member.weights[1]] for member in members))
    widths = [member.result.type.shape[1] for member in members]
    total = weights[weight_name].shape[0]
    rows = members[0].result.type.shape[0]
    product = Value(members[0].result.name + ".stacked", TensorType("f32", (rows, total)))
    operations = [Operation("linear", product, members[0].operands, (weight_name, bias_name))]
    start = 0
    for member, width in zip(members, widths, strict=True):
        assert isinstance(width, int)
        attributes = (("start", start), ("stop", start + width))
        operations.append(Operation("slice", member.result, (product.name,), (), attributes))
        start += width
    return operations


def _joined(names: list[str]) -> str:
    """Return "layer.q_proj+k_proj" for names that share the prefix "layer."."""
    split = [name.split(".") for name in names]
    shared = 0
    while len({tuple(parts[: shared + 1]) for parts in split}) == 1 and shared + 1 < min(map(len, split)):
        shared += 1
    return ".".join([*split[0][:shared], "+".join(".".join(parts[shared:]) for parts in split)])
