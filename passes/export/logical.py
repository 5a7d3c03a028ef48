"""The program for ONNX of an artifact as logical operators, and its weights as torch holds them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyc.backends.torch_tensorrt.weights import AnyWeight, CodedWeight, DenseWeight, Float8Weight
from pyc.compiler.ir import Function, Graph, Operation
from pyc.compiler.rewrite import map_functions
from pyc.passes.export.source import Exportable

PREFIX = "blockwise_"
"""Of operators whose matrix is in parts: codes, scales, zero points (`backends.onnx.operators`)."""
FLOAT8_PREFIX = "float8_"
"""Of those whose matrix is floating point of 8 bits: codes and scales."""


def logical(source: Exportable) -> tuple[Graph, dict[str, AnyWeight]]:
    """Return the graph of logical operators, and the weights that it reads. Raises ArtifactError for damaged ones."""
    weights: dict[str, AnyWeight] = {}

    def mapped(function: Function) -> Function:
        widths = {value.name: value.type.shape[-1] for value in function.parameters}
        operations = []
        for operation in function.operations:
            widths[operation.result.name] = operation.result.type.shape[-1]
            if operation.kind.startswith(FLOAT8_PREFIX):
                weights.setdefault(operation.weights[0], _float8(source, operation))
                operation = _logical_float8(operation)
            elif operation.kind.startswith(PREFIX):
                is_lookup = operation.kind == "blockwise_embedding"
                columns = widths[operation.result.name if is_lookup else operation.operands[0]]
                assert isinstance(columns, int)
                weights.setdefault(operation.weights[0], _coded(source, operation, columns))
                operation = _logical(operation)
            operations.append(operation)
        return replace(function, operations=tuple(operations))

    graph = map_functions(source.graph, mapped)
    for name in graph.weight_names():
        if name not in weights:
            weights[name] = DenseWeight(_array(source, name))
    return graph, {name: weights[name] for name in graph.weight_names()}


def _logical(operation: Operation) -> Operation:
    codes, _, _, *rest = operation.weights
    kept = tuple((key, value) for key, value in operation.attributes if key not in ("activations", "bits", "block"))
    kind = operation.kind.removeprefix(PREFIX)
    return replace(operation, kind=kind, weights=(codes, *rest), attributes=kept)


def _logical_float8(operation: Operation) -> Operation:
    codes, _, *rest = operation.weights
    kept = tuple((key, value) for key, value in operation.attributes if key not in ("block", "format"))
    return replace(
        operation, kind=operation.kind.removeprefix(FLOAT8_PREFIX), weights=(codes, *rest), attributes=kept
    )


def _float8(source: Exportable, operation: Operation) -> Float8Weight:
    codes, scales = (_array(source, name) for name in operation.weights[:2])
    return Float8Weight(codes, scales, float_format=operation.text("format"), block=operation.integer("block"))


def _coded(source: Exportable, operation: Operation, columns: int) -> CodedWeight:
    codes, scales, zeros = operation.weights[:3]
    scale = _array(source, scales)
    packed = _array(source, codes)
    return CodedWeight(
        packed.reshape(len(packed), -1),
        scale,
        _halves(_array(source, zeros))[:, : scale.shape[1]] if zeros else None,
        bits=operation.integer("bits"),
        group=operation.integer("block"),
        columns=columns,
    )


def _array(source: Exportable, name: str) -> NDArray[np.uint8]:
    """Return a tensor of the artifact, copied: the file may be cut while torch holds it."""
    return np.array(source.artifact.tensor(name))


def _halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return codes of four bits, of which a byte has two, the first the lower."""
    both = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
    return both.reshape(len(packed), -1)
