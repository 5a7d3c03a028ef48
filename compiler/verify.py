"""Checks that a module is legal: definitions before uses, types as inferred, weights present and used."""

from __future__ import annotations

from collections.abc import Mapping

from pyc.compiler.ir import Function, Module, TensorType
from pyc.compiler.operators import OPERATORS, Operator, infer_type


def verify(module: Module, stage: str, operators: Mapping[str, Operator] = OPERATORS) -> None:
    """Raise AssertionError, naming `stage` and the operation, when `module` is not legal by a table of `operators`.

    An illegal module is a defect of a pass, never of the user's input.
    """
    names = [function.name for function in module.graph.functions]
    assert len(set(names)) == len(names), f"{stage}: two functions have one name: {names}"
    for function in module.graph.functions:
        _verify_function(function, module, stage, operators)
    unused = set(module.weights) - set(module.graph.weight_names())
    assert not unused, f"{stage}: weights that no operation reads: {sorted(unused)[:5]}"


def _verify_function(function: Function, module: Module, stage: str, operators: Mapping[str, Operator]) -> None:
    types: dict[str, TensorType] = {value.name: value.type for value in function.parameters}
    for operation in function.operations:
        where = f"{stage}: {function.name}: {operation.result.name} = {operation.kind}"
        missing = [name for name in operation.operands if name not in types]
        assert not missing, f"{where}: reads {missing}, which is not defined before it"
        assert operation.result.name not in types, f"{where}: defined twice"
        absent = [name for name in operation.weights if name and name not in module.weights]
        assert not absent, f"{where}: reads weights that do not exist: {absent}"
        shapes = tuple(module.weights[name].shape if name else None for name in operation.weights)
        operands = tuple(types[name] for name in operation.operands)
        try:
            inferred = infer_type(operation.kind, operands, shapes, dict(operation.attributes), operators)
        except ValueError as error:
            raise AssertionError(f"{where}: {error}") from error
        assert inferred == operation.result.type, f"{where}: has {operation.result.type}, infers {inferred}"
        types[operation.result.name] = inferred
    assert function.result in types, f"{stage}: {function.name}: returns {function.result}, never defined"
