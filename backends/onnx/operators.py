"""The operators that passes of ONNX put in the place of logical ones; symbols are those of `compiler.operators`.

| operator | operands; weights | result |
|---|---|---|
| blockwise_embedding | ids [T] i32; codes, scales, zero_points? [V, H] {bits, block} | [T, H] |
| blockwise_linear | x [T, K]; codes, scales, zero_points? [N, K], bias? [N] {bits, block, activations} | [T, N] |
| float8_embedding | ids [T] i32; codes, scales [V, H] {block, format} | [T, H] |
| float8_linear | x [T, K]; codes, scales [N, K], bias? [N] {block, format} | [T, N] |

Codes, scales and zero points are tensors of their own, whose expressions have the shape of the matrix they are of
(`backends.onnx.layouts`). `bits` is 4 or 8, `block` how many inputs share a scale, `activations` what rows are rounded
to before they are multiplied: "int8" or "f32", that is not at all. Of 8-bit floating point `format` is "e4m3" or
"e5m2", and `block` 0 where a row has one scale.
"""

from __future__ import annotations

from pyc.compiler.ir import Dimension
from pyc.compiler.operators import OPERATORS, Attributes, Operator, Shapes, WeightShapes, infer_linear


def _check_blocks(weights: WeightShapes) -> None:
    if any(shape is not None and shape != weights[0] for shape in weights[:3]):
        raise ValueError(f"codes, scales and zero points are of different matrices: {weights[:3]}")


def _linear(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    _check_blocks(weights)
    return infer_linear(shapes, (weights[0], weights[3]), attributes)


def _float8_linear(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    _check_blocks(weights[:2])
    return infer_linear(shapes, (weights[0], weights[2]), attributes)


def _embedding(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    _check_blocks(weights)
    assert weights[0] is not None  # it is not optional
    return (shapes[0][0], weights[0][1])


ONNX_OPERATORS: dict[str, Operator] = {
    "blockwise_embedding": Operator(
        1, 3, frozenset({"bits", "block"}), _embedding, frozenset({2}), role="lookup", rowwise=(0,)
    ),
    "blockwise_linear": Operator(
        1, 4, frozenset({"bits", "block", "activations"}), _linear, frozenset({2, 3}), role="matmul", rowwise=(0,)
    ),
    "float8_embedding": Operator(1, 2, frozenset({"block", "format"}), _embedding, role="lookup", rowwise=(0,)),
    "float8_linear": Operator(
        1, 3, frozenset({"block", "format"}), _float8_linear, frozenset({2}), role="matmul", rowwise=(0,)
    ),
}
"""Those alone."""

ALL_OPERATORS = {**OPERATORS, **ONNX_OPERATORS}
"""What a module of ONNX may consist of."""
