"""Split activations for AMX: f32 rows become three bf16 each, which it multiplies by bf16 weights exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.backends.cpu.layouts import split_bytes
from pyc.backends.cpu.row_formats import is_split
from pyc.backends.cpu.versions import rewrite_version
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.weights import Expression, Packed


@dataclass(frozen=True, slots=True)
class SplitActivations:
    """Rewrites linear by bf16, and what becomes it exactly, to split_rows and linear_split, in versions "amx".

    A value is split once for all matmuls that read it. Matmuls of fewer rows than a batch's are left.
    """

    name: ClassVar[str] = "split_activations"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("integer-matmuls", "packed", "prompt")
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with versions "amx" of functions that multiply f32 by such weights."""
        graph = rewrite_version(module.graph, "amx", lambda function: _split(function, module.weights))
        return module.with_graph(graph)


def _split(function: Function, weights: Mapping[str, Expression]) -> Function:
    pieces: dict[str, str] = {}
    operations: list[Operation] = []
    for operation in function.operations:
        if operation.kind != "linear" or operation.result.type.shape[0] != "tokens":
            operations.append(operation)
            continue
        weight, (x,) = weights[operation.weights[0]], operation.operands
        assert isinstance(weight, Packed)
        scheme, features = stored_scheme(weight.base), weight.shape[1]
        if not is_split(scheme):
            operations.append(operation)
            continue
        if x not in pieces:
            pieces[x] = f"{x}.pieces"
            split = Value(pieces[x], TensorType("u8", ("tokens", split_bytes(features))))
            operations.append(Operation("split_rows", split, (x,)))
        attributes = (("features", features),)
        matmul = Operation("linear_split", operation.result, (pieces[x],), operation.weights, attributes)
        operations.append(matmul)
    return replace(function, operations=tuple(operations))
