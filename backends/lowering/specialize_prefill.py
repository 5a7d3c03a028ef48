"""Lower prompts: beside "forward" a function "prompt" that returns one row, and computes no other where it can.

A chunk of a prompt needs the hidden state of its last token only, yet every token's keys and values in every layer. So
everything after the last layer's `qkv_append` (attention, output and feed-forward matmuls) runs for one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.compiler.ir import Function, Graph, Module, Operation, TensorType, Value
from pyc.compiler.operators import Operator
from pyc.compiler.rewrite import rename_operands, with_operations

ROW = "row"
"""The parameter that names the wanted row, i32 [1]."""


@dataclass(frozen=True, slots=True)
class SpecializePrefill:
    """Adds "prompt" to a graph that has "forward": f(the same, row i32 [1]) -> row `row` of forward's result.

    `operators` are all that a module may consist of.
    """

    operators: Mapping[str, Operator]
    name: ClassVar[str] = "specialize_prefill"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("attention-lowered", "packed")
    provides: ClassVar[tuple[str, ...]] = ("prompt",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with the function added behind "forward"."""
        functions: list[Function] = []
        for function in module.graph.functions:
            functions.append(function)
            if function.name == "forward":
                functions.append(_prompt(function, self.operators))
        return module.with_graph(Graph(tuple(functions)))


def _prompt(forward: Function, operators: Mapping[str, Operator]) -> Function:
    narrow = _narrow_operations(forward, operators)
    wanted = {operation.operands[i] for operation in narrow.values() for i in operators[operation.kind].rowwise}
    wanted.add(forward.result)
    # Interleaved rows cannot be selected one by one (templates/cpu/include/pyc_interleaved_rows.h): one row is
    # quantized again.
    wide = wanted - narrow.keys()
    requantized = [o for o in forward.operations if o.kind == "quantize_rows" and o.result.name in wide]
    wanted |= {operation.operands[0] for operation in requantized}
    types = {value.name: value.type for value in forward.parameters}
    types |= {operation.result.name: operation.result.type for operation in forward.operations}
    renames = {name: _row_of(name) for name in wanted if name not in narrow}
    parameters = (*forward.parameters, Value(ROW, TensorType("i32", (1,))))
    operations = [_select(types[value.name], value.name) for value in forward.parameters if value.name in renames]
    for operation in forward.operations:
        name = operation.result.name
        if name in narrow:
            one = replace(operation, result=Value(name, _one_row(operation.result.type)))
            operations.append(rename_operands(one, _kept(operation, renames, operators)))
            continue
        operations.append(operation)
        if name in renames:
            of_one = _select(operation.result.type, name)
            if operation in requantized:
                of_one = rename_operands(replace(operation, result=of_one.result), _kept(operation, renames, operators))
            operations.append(of_one)
    result = renames.get(forward.result, forward.result)
    function = replace(forward, name="prompt", parameters=parameters, result=result)
    return with_operations(function, operations, {})


def _narrow_operations(function: Function, operators: Mapping[str, Operator]) -> dict[str, Operation]:
    """Return, by result, the operations of which one row is enough: only such operations use them."""
    users = function.users()
    narrow: dict[str, Operation] = {}
    for operation in reversed(function.operations):
        name = operation.result.name
        readers = users.get(name, ())
        if operators[operation.kind].rowwise and all(reader.result.name in narrow for reader in readers):
            narrow[name] = operation
    return narrow


def _kept(operation: Operation, renames: dict[str, str], operators: Mapping[str, Operator]) -> dict[str, str]:
    """Return the renames that apply to the operands of which the operation reads rows."""
    rows = (operation.operands[index] for index in operators[operation.kind].rowwise)
    return {name: renames[name] for name in rows if name in renames}


def _row_of(name: str) -> str:
    return f"{name}.row"


def _one_row(type_: TensorType) -> TensorType:
    return replace(type_, shape=(1, *type_.shape[1:]))


def _select(type_: TensorType, name: str) -> Operation:
    return Operation("select_row", Value(_row_of(name), _one_row(type_)), (name, ROW))
