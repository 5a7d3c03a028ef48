"""Rewrites of every operation that has a matrix, for passes that store matrices in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.operators import Operator
from pyc.compiler.rewrite import map_functions
from pyc.compiler.weights import Expression

Lower = Callable[[Operation, Expression, dict[str, Expression]], Operation]
"""Returns what stands for an operation with a matrix, the expression, and adds the weights that this reads."""


def map_matrices(module: Module, operators: Mapping[str, Operator], lower: Lower) -> Module:
    """Return the module with `lower` of every operation that has a matrix by a table of `operators`."""
    weights: dict[str, Expression] = dict(module.weights)

    def lowered(operation: Operation) -> Operation:
        if not operators[operation.kind].has_matrix:
            return operation
        return lower(operation, module.weights[operation.weights[0]], weights)

    def mapped(function: Function) -> Function:
        return replace(function, operations=tuple(map(lowered, function.operations)))

    return module.with_graph(map_functions(module.graph, mapped), weights)
