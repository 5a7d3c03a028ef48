"""The operators that passes of ONNX put in the place of logical ones; symbols are those of `compiler.operators`.

| operator | operands; weights | result |
|---|---|---|
| blockwise_embedding | ids [T] i32; codes, scales, zero_points? [V, H] {bits, block} | [T, H] |
| blockwise_linear | x [T, K]; codes, scales, zero_points? [N, K], bias? [N] {bits, block, activations} | [T, N] |

Codes, scales and zero points are tensors of their own, whose expressions have the shape of the matrix they are of
(`backends.onnx.layouts`). `bits` is 4 or 8, `block` how many inputs share a scale, `activations` what rows are rounded
to before they are multiplied: "int8" or "f32", that is not at all.
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
}
"""Those alone."""

ALL_OPERATORS = {**OPERATORS, **ONNX_OPERATORS}
"""What a module of ONNX may consist of."""
