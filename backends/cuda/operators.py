"""The operators that passes of CUDA put in the place of logical ones; symbols are those of `compiler.operators`.

| operator | operands; weights | result |
|---|---|---|
| coded_linear | x [T, K]; codes, scales, zero_points?, factors?, bias? [N] {features = K, scheme} | [T, N] |
| coded_embedding | ids [T] i32; codes, scales, zero_points?, factors? {features = H, scheme} | [T, H] |
| append_attention | those of qkv_append {its attributes, scale, window} | cached_attention of its queries |
| add_rms_norm | a [T, H], b [T, H]; gain? [H] {epsilon} | rms_norm of the sum, and the sum |
| add_layer_norm | a [T, H], b [T, H]; gain [H], bias [H] {epsilon} | layer_norm of the sum, and the sum |

Beside them are those of `backends.lowering.operators`. `scheme` is the name of one in `compiler.schemes`; what the
parts of a matrix look like is in `backends.cuda.layouts`. Matrices of floating point are those of linear and embedding.
"""

from __future__ import annotations

from dataclasses import replace

from pyc.backends.lowering.operators import APPEND, LOWERED_OPERATORS
from pyc.compiler.ir import Dimension
from pyc.compiler.operators import (
    ATTENTION,
    OPERATORS,
    Attributes,
    Operator,
    Shapes,
    WeightShapes,
    infer_heads,
    integer_attribute,
)

_CODED = frozenset({"features", "scheme"})


def _rows_of_codes(weights: WeightShapes) -> int:
    codes = weights[0]
    assert codes is not None
    return codes[0]


def _coded_linear(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    rows, width = shapes[0]
    outputs, features = _rows_of_codes(weights), integer_attribute(attributes, "features")
    if width != features:
        raise ValueError(f"operand has {width} features, the weight [{outputs}, {features}] expects {features}")
    if weights[4] is not None and weights[4] != (outputs,):
        raise ValueError(f"bias {weights[4]} for {outputs} outputs")
    return (rows, outputs)


def _coded_embedding(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[0][0], integer_attribute(attributes, "features"))


def _normed_sum(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    total = OPERATORS["add"].infer(shapes, (), {})
    return OPERATORS["rms_norm"].infer((total,), weights, attributes)


def _of_sum(norm: Operator) -> Operator:
    return replace(norm, operands=2, infer=_normed_sum, rowwise=(0, 1), also=(0,))


CUDA_OPERATORS: dict[str, Operator] = {
    **LOWERED_OPERATORS,
    "coded_linear": Operator(
        1, 5, _CODED, _coded_linear, optional=frozenset({2, 3, 4}), role="matmul", rowwise=(0,)
    ),
    "coded_embedding": Operator(
        1, 4, _CODED, _coded_embedding, optional=frozenset({2, 3}), role="lookup", rowwise=(0,)
    ),
    "append_attention": Operator(5, 2, APPEND | ATTENTION, infer_heads, optional=frozenset({0, 1})),
    "add_rms_norm": _of_sum(OPERATORS["rms_norm"]),
    "add_layer_norm": _of_sum(OPERATORS["layer_norm"]),
}
"""Those alone."""

ALL_OPERATORS = {**OPERATORS, **CUDA_OPERATORS}
"""What a module for CUDA may consist of while its passes run."""
