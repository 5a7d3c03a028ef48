"""Fuse gate and up (SwiGLU, GeGLU) of a stacked matmul: gated(y[:, :F], y[:, F:]) becomes gated_pair(y), without
copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import map_functions, with_operations


@dataclass(frozen=True, slots=True)
class FuseGateUp:
    """Lets gated activations read both halves of one value."""

    name: ClassVar[str] = "fuse_gate_up"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with gated_pair wherever both operands are the halves of one value."""
        return module.with_graph(map_functions(module.graph, _lower))


def _lower(function: Function) -> Function:
    definitions = function.definitions()
    widths = {o.result.name: o.result.type.shape[1] for o in function.operations}

    def lowered(operation: Operation) -> Operation:
        if operation.kind != "gated":
            return operation
        gate, up = (definitions.get(name) for name in operation.operands)
        if gate is None or up is None or gate.kind != "slice" or up.kind != "slice":
            return operation
        half = gate.integer("stop")
        halves = gate.integer("start") == 0 and up.integer("start") == half and up.integer("stop") == 2 * half
        if gate.operands != up.operands or not halves or widths.get(gate.operands[0]) != 2 * half:
            return operation
        return Operation("gated_pair", operation.result, gate.operands, (), operation.attributes)

    return with_operations(function, [lowered(operation) for operation in function.operations], {})
