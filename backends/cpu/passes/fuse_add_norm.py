"""Fuse additions with the norm behind them, whose kernel adds first: a residual's sum, its norm, and the norm
quantized."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import map_functions, with_replaced

_NORMS = frozenset({"rms_norm_quantize", "layer_norm_quantize"})


@dataclass(frozen=True, slots=True)
class FuseAddNorm:
    """Rewrites add and the X_quantize that is the first to read the sum to add_X_quantize, for norms.

    The sum becomes its second result, which others may read after it. It is `in_place` where nothing reads either of
    the addends again: kernels then write the sum where the first was, and need the other's place for the norm.
    """

    name: ClassVar[str] = "fuse_add_norm"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("quantizers-fused",)
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module without additions that kernels of norms do."""
        return module.with_graph(map_functions(module.graph, lambda function: _in_place(_fuse(function))))


def _fuse(function: Function) -> Function:
    places = {operation.result.name: index for index, operation in enumerate(function.operations)}
    replaced: dict[str, Operation | None] = {}
    for index, norm in enumerate(function.operations):
        at = places.get(norm.operands[0], index)
        total, between = function.operations[at], function.operations[at + 1 : index]
        if norm.kind not in _NORMS or total.kind != "add" or any(norm.operands[0] in o.operands for o in between):
            continue
        operands = (*total.operands, *norm.operands[1:])
        attributes = tuple(sorted((*norm.attributes, ("in_place", False))))
        fused = Operation(f"add_{norm.kind}", norm.result, operands, norm.weights, attributes, (total.result,))
        replaced |= {norm.result.name: fused, total.result.name: None}
    return with_replaced(function, replaced)


def _in_place(function: Function) -> Function:
    """Return the function with the attribute `in_place` set where the addends are not read again."""
    callers = {value.name for value in function.parameters} | {function.result}
    last = {name: index for index, operation in enumerate(function.operations) for name in operation.operands}
    replaced: dict[str, Operation | None] = {}
    for index, operation in enumerate(function.operations):
        if not operation.also:
            continue
        addends = set(operation.operands)
        if len(addends) == 2 and not addends & callers and all(last[name] == index for name in addends):
            attributes = tuple(sorted((dict(operation.attributes) | {"in_place": True}).items()))
            replaced[operation.result.name] = replace(operation, attributes=attributes)
    return with_replaced(function, replaced)
