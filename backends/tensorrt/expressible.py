"""Which operators of ONNX TensorRT's parser documents, and where in a model an operation is, for who is told of one."""

from __future__ import annotations

from collections.abc import Mapping

from pyc.compiler.ir import Operation

LEAST_VERSION = (10, 15)
"""The first TensorRT whose parser has all of them."""

_SINCE_10_1 = (
    "Add And Cast Concat Cos DequantizeLinear Div Gather Gelu GreaterOrEqual Identity LayerNormalization Less "
    "LessOrEqual MatMul Max Mul Pow Range ReduceL2 ReduceSum Relu Reshape Shape Sigmoid Sin Slice Softmax Split "
    "Squeeze Sub Transpose Unsqueeze Where"
)
DOCUMENTED: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(_SINCE_10_1.split(), (10, 1)),
    "Attention": (10, 14),
    "RMSNormalization": (10, 15),
    "RotaryEmbedding": (10, 15),
}
"""Operators by name, and the version whose documents were read for it: the table of operators of onnx-tensorrt 10.1,
and the changes of TensorRT 10.14 and 10.15."""


def place_of(operation: Operation) -> str:
    """Return what a person finds an operation by: its matrix, its layer, or the value that it makes."""
    if operation.weights and operation.weights[0]:
        return operation.weights[0].removesuffix(".codes")
    attributes = dict(operation.attributes)
    return f"layer {attributes['layer']}" if "layer" in attributes else operation.result.name
