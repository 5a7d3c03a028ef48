"""Small pure functions with which passes rewrite functions of the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyc.compiler.ir import Function, Graph, Operation

Rewrite = Callable[[Function], Function]


def map_functions(graph: Graph, rewrite: Rewrite) -> Graph:
    """Return the graph with every function rewritten, and every version of one."""
    functions, versions = (tuple(map(rewrite, some)) for some in (graph.functions, graph.versions))
    return Graph(functions, versions)


def rename_operands(operation: Operation, renames: Mapping[str, str]) -> Operation:
    """Return the operation reading `renames[x]` wherever it read x."""
    return replace(operation, operands=tuple(renames.get(name, name) for name in operation.operands))


def rename_weights(operation: Operation, renames: Mapping[str, str]) -> Operation:
    """Return the operation reading the weight `renames[w]` wherever it read w."""
    return replace(operation, weights=tuple(renames.get(name, name) for name in operation.weights))


def with_operations(function: Function, operations: list[Operation], renames: Mapping[str, str]) -> Function:
    """Return the function with other operations, operands and result renamed, and dead operations dropped."""
    renamed = [rename_operands(operation, renames) for operation in operations]
    result = renames.get(function.result, function.result)
    live = {result}
    kept: list[Operation] = []
    for operation in reversed(renamed):
        if any(value.name in live for value in operation.results):
            live.update(operation.operands)
            kept.append(operation)
    return replace(function, operations=tuple(reversed(kept)), result=result)


def weight_readers(graph: Graph, name: str) -> tuple[Operation, ...]:
    """Return every operation, in any function, that reads the weight `name`."""
    return tuple(o for function in graph.all_functions for o in function.operations if name in o.weights)


def with_replaced(function: Function, replaced: Mapping[str, Operation | None]) -> Function:
    """Return the function with others in the place of operations, by the name of their first result; None: nothing."""
    changed = (replaced.get(operation.result.name, operation) for operation in function.operations)
    return replace(function, operations=tuple(operation for operation in changed if operation is not None))


def only_readers(function: Function) -> dict[str, Operation]:
    """Return the operation that reads a value, for each that one alone reads and that is not the function's result."""
    found = {name: readers[0] for name, readers in function.users().items() if len(readers) == 1}
    found.pop(function.result, None)
    return found
