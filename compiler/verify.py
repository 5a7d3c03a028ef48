"""Checks that a module is legal: definitions before uses, types as inferred, weights present and used."""

from __future__ import annotations

from collections.abc import Mapping

from pyc.compiler.ir import Function, Module, Operation, TensorType
from pyc.compiler.operators import OPERATORS, Operator, infer_types


def verify(module: Module, stage: str, operators: Mapping[str, Operator] = OPERATORS) -> None:
    """Raise AssertionError, naming `stage` and the operation, when `module` is not legal by a table of `operators`.

    An illegal module is a defect of a pass, never of the user's input.
    """
    names = [function.name for function in module.graph.functions]
    assert len(set(names)) == len(names), f"{stage}: two functions have one name: {names}"
    for function in module.graph.functions:
        assert not function.version, f"{stage}: {function.name} is a version, {function.version}, of no function"
        _verify_function(function, module, stage, operators)
    for version in module.graph.versions:
        _verify_version(version, module, f"{stage}: {version.name}.{version.version}")
        _verify_function(version, module, stage, operators)
    labels = [(version.name, version.version) for version in module.graph.versions]
    assert len(set(labels)) == len(labels), f"{stage}: two versions of a function have one name: {labels}"
    unused = set(module.weights) - set(module.graph.weight_names())
    assert not unused, f"{stage}: weights that no operation reads: {sorted(unused)[:5]}"


def _verify_version(version: Function, module: Module, where: str) -> None:
    assert version.version, f"{where}: a version has no name"
    of = next((function for function in module.graph.functions if function.name == version.name), None)
    assert of is not None, f"{where}: is a version of no function"
    assert version.parameters == of.parameters, f"{where}: has other parameters than {of.name}"
    assert version.result == of.result, f"{where}: returns {version.result}, {of.name} {of.result}"


def _verify_function(function: Function, module: Module, stage: str, operators: Mapping[str, Operator]) -> None:
    types: dict[str, TensorType] = {value.name: value.type for value in function.parameters}
    for operation in function.operations:
        here = (stage, function, operation)
        if not types.keys() >= set(operation.operands):
            missing = [name for name in operation.operands if name not in types]
            raise AssertionError(f"{_where(*here)}: reads {missing}, which is not defined before it")
        made = {value.name: value.type for value in operation.results}
        assert len(made) == len(operation.results) and types.keys().isdisjoint(made), f"{_where(*here)}: defined twice"
        absent = [name for name in operation.weights if name and name not in module.weights]
        assert not absent, f"{_where(*here)}: reads weights that do not exist: {absent}"
        shapes = tuple([module.weights[name].shape if name else None for name in operation.weights])
        operands = tuple([types[name] for name in operation.operands])
        try:
            inferred = infer_types(operation.kind, operands, shapes, dict(operation.attributes), operators)
        except ValueError as error:
            raise AssertionError(f"{_where(*here)}: {error}") from error
        has = tuple(made.values())
        assert inferred == has, f"{_where(*here)}: has {has}, infers {inferred}"
        types |= made
    assert function.result in types, f"{stage}: {function.name}: returns {function.result}, never defined"


def _where(stage: str, function: Function, operation: Operation) -> str:
    label = ", ".join(value.name for value in operation.results)
    return f"{stage}: {function.name}: {label} = {operation.kind}"
