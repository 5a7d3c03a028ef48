"""The operators that passes of the CPU put in the place of logical ones; symbols are those of `compiler.operators`.

| operator | operands; weights | result |
|---|---|---|
| quantize_rows | x [T, K] {records} | u8 [T, record_bytes]: records of int8 or bf16 (`layouts`) |
| linear_quantized | rows u8 [T, record_bytes]; weight [N, K], bias? [N] {features = K, records} | [T, N] |
| select_row | x [T, ...], row i32 [1] | [1, ...], row `row` of x, of the same dtype |
| qkv_append | qkv, angles, positions, sequences, block_table; q_gain?, k_gain? {...} | rotated q [T, heads*d] |
| cached_attention | q, positions, sequences, block_table {...} | [T, heads*d] |
| qkv_span_attention | qkv [T, 3*heads*d], span_start, span_end {heads, head_dim, scale} | [T, heads*d] |
| gated_pair | gate_up [T, 2F] {function} | act(first half) * second half |

`lower_attention` splits `attention` into `qkv_append` and `cached_attention`, which also take over head_norm and rope,
and gives span_attention one operand.
"""

from __future__ import annotations

from typing import cast, get_args

from pyc.backends.cpu.layouts import record_bytes
from pyc.backends.cpu.records import Records
from pyc.compiler.ir import Dimension
from pyc.compiler.operators import (
    ATTENTION,
    OPERATORS,
    Attributes,
    Operator,
    Shapes,
    WeightShapes,
    infer_heads,
    infer_linear,
    integer_attribute,
)


def _quantized(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    width = shapes[0][1]
    assert isinstance(width, int)
    return (shapes[0][0], record_bytes(width, _records(attributes)))


def _linear_quantized(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    features = integer_attribute(attributes, "features")
    if shapes[0][1] != record_bytes(features, _records(attributes)):
        raise ValueError(f"operand rows have {shapes[0][1]} bytes, not those of {features} features")
    return infer_linear(((shapes[0][0], features),), weights, attributes)


def _records(attributes: Attributes) -> Records:
    value = attributes["records"]
    for known in get_args(Records):
        if value == known:
            return cast(Records, known)
    raise ValueError(f"records {value!r} are unknown")


def _selected(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    if shapes[1] != (1,):
        raise ValueError(f"the row's number has shape {shapes[1]}, expected (1,)")
    return (1, *shapes[0][1:])


def _halved(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    width = shapes[0][1]
    if not isinstance(width, int) or width % 2:
        raise ValueError(f"{width} features do not split into gate and up")
    return (shapes[0][0], width // 2)


_QUANTIZED = frozenset({"features", "records"})
_APPEND = frozenset({"layer", "heads", "kv_heads", "head_dim", "epsilon"})

CPU_OPERATORS: dict[str, Operator] = {
    "quantize_rows": Operator(1, 0, frozenset({"records"}), _quantized, dtype="u8", rowwise=(0,)),
    "linear_quantized": Operator(
        1, 2, _QUANTIZED, _linear_quantized, optional=frozenset({1}), role="matmul", rowwise=(0,)
    ),
    "select_row": Operator(2, 0, frozenset(), _selected, dtype=None),
    "qkv_append": Operator(5, 2, _APPEND, infer_heads, optional=frozenset({0, 1})),
    "cached_attention": Operator(4, 0, ATTENTION, infer_heads, rowwise=(0, 1, 2)),
    "qkv_span_attention": Operator(3, 0, frozenset({"heads", "head_dim", "scale"}), infer_heads),
    "gated_pair": Operator(1, 0, frozenset({"function"}), _halved, rowwise=(0,)),
}
"""Those alone."""

ALL_OPERATORS = {**OPERATORS, **CPU_OPERATORS}
"""What a module of the CPU may consist of while its passes run."""

MATMULS = frozenset(name for name, operator in ALL_OPERATORS.items() if operator.role == "matmul")
"""Operations that multiply by a packed matrix."""
