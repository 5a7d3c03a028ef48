"""Operators that passes put in the place of logical ones for every backend with kernels of its own.

Symbols are those of `compiler.operators`.

| operator | operands; weights | result |
|---|---|---|
| select_row | x [T, ...], row i32 [1] | [1, ...], row `row` of x, of the same dtype |
| qkv_append | qkv, angles, positions, sequences, block_table; q_gain?, k_gain? {...} | rotated q [T, heads*d] |
| cached_attention | q, positions, sequences, block_table {...} | [T, heads*d] |
| qkv_span_attention | qkv [T, 3*heads*d], span_start, span_end {heads, head_dim, scale} | [T, heads*d] |
| gated_pair | gate_up [T, 2F] {function} | act(first half) * second half |

`lower_attention` splits `attention` into `qkv_append` and `cached_attention`, which also take over head_norm and rope,
and gives span_attention one operand.
"""

from __future__ import annotations

from pyc.compiler.ir import Dimension
from pyc.compiler.operators import ATTENTION, Attributes, Operator, Shapes, WeightShapes, infer_heads


def _selected(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    if shapes[1] != (1,):
        raise ValueError(f"the row's number has shape {shapes[1]}, expected (1,)")
    return (1, *shapes[0][1:])


def infer_half(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    """Infer what one half of each row gates the other to."""
    width = shapes[0][1]
    if not isinstance(width, int) or width % 2:
        raise ValueError(f"{width} features do not split into gate and up")
    return (shapes[0][0], width // 2)


APPEND = frozenset({"layer", "heads", "kv_heads", "head_dim", "epsilon"})
"""Attributes of qkv_append."""

LOWERED_OPERATORS: dict[str, Operator] = {
    "select_row": Operator(2, 0, frozenset(), _selected, dtype=None),
    "qkv_append": Operator(5, 2, APPEND, infer_heads, optional=frozenset({0, 1})),
    "cached_attention": Operator(4, 0, ATTENTION, infer_heads, rowwise=(0, 1, 2)),
    "qkv_span_attention": Operator(3, 0, frozenset({"heads", "head_dim", "scale"}), infer_heads),
    "gated_pair": Operator(1, 0, frozenset({"function"}), infer_half, rowwise=(0,)),
}
"""Those alone."""
