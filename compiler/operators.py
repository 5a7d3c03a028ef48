"""The operators of the IR: arity, attributes and result type of each, as one table.

Symbols: T rows of the batch ("tokens"), S sequences, H features of a row. "?" marks an optional weight.

| operator | operands; weights | result |
|---|---|---|
| embedding | ids [T] i32; table [V, H] | [T, H] |
| add | a [T, H], b [T, H] | [T, H] |
| add_row | a [T, H]; table [n, H] {index} | [T, H], a + table[index] |
| rms_norm | x [T, H]; gain? [H] {epsilon} | [T, H], x / sqrt(mean(x^2) + epsilon) * gain |
| layer_norm | x [T, H]; gain [H], bias [H] {epsilon} | [T, H] |
| head_norm | x [T, h*d]; gain [d] {epsilon, head_dim} | rms_norm of each head of d features |
| linear | x [T, K]; weight [N, K], bias? [N] | [T, N] |
| quantize_rows | x [T, K] {records} | u8 [T, record_bytes]: records of int8 or bf16 (`compiler.layouts`) |
| linear_quantized | rows u8 [T, record_bytes]; weight [N, K], bias? [N] {features = K, records} | [T, N] |
| slice | x [T, H] {start, stop} | [T, stop - start] |
| select_row | x [T, ...], row i32 [1] | [1, ...], row `row` of x, of the same dtype |
| concat | a [T, H], b [T, I] | [T, H + I] |
| rope_angles | positions [T] i32; inverse_frequencies [r/2] {scale, ...} | [T, r]: cosines, then sines |
| rope | x [T, h*d], angles [T, r] {head_dim} | rotates the first r features of each head, pairs (i, i + r/2) |
| attention | q, k, v, positions, sequences, block_table {layer, heads, kv_heads, ...} | [T, heads*d] |
| qkv_append | qkv, angles, positions, sequences, block_table; q_gain?, k_gain? {...} | rotated q [T, heads*d] |
| cached_attention | q, positions, sequences, block_table {...} | [T, heads*d] |
| span_attention | q, k, v [T, heads*d], span_start, span_end {heads, head_dim, scale} | [T, heads*d] |
| qkv_span_attention | qkv [T, 3*heads*d], span_start, span_end {heads, head_dim, scale} | [T, heads*d] |
| activation | x [T, H] {function} | [T, H] |
| gated | gate [T, F], up [T, F] {function} | act(gate) * up |
| gated_pair | gate_up [T, 2F] {function} | act(first half) * second half |
| pool | x [T, H], seq_start [S], seq_end [S] {mode, normalize} | [S, H] |

`attention` appends k and v of its rows to the cache of `layer` and attends to it; `lower_attention` splits it
into `qkv_append` and `cached_attention`, which also take over head_norm and rope, and gives span_attention one operand.
`window` 0 means unbounded.
Activation functions: "silu", "gelu" (erf), "gelu_tanh", "relu".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast, get_args

from pyc.compiler.ir import Dimension, Scalar, TensorType
from pyc.compiler.layouts import record_bytes
from pyc.compiler.schemes import Records

Shapes = tuple[tuple[Dimension, ...], ...]
Attributes = Mapping[str, Scalar]
WeightShapes = tuple[tuple[int, ...] | None, ...]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
"""Names that the attribute `function` may take."""


@dataclass(frozen=True, slots=True)
class Operator:
    """What a legal operation looks like; `infer` gives the result's shape or raises ValueError in words."""

    operands: int
    weights: int
    attributes: frozenset[str]
    infer: Callable[[Shapes, WeightShapes, Attributes], tuple[Dimension, ...]]
    optional: frozenset[int] = frozenset()
    dtype: str | None = "f32"
    """Of the result; None: that of the first operand."""


def _integer(attributes: Attributes, key: str) -> int:
    value = attributes[key]
    if not isinstance(value, int):
        raise ValueError(f"attribute {key} is {value!r}, expected an integer")
    return value


def _weight(weights: WeightShapes, index: int) -> tuple[int, ...]:
    shape = weights[index]
    if shape is None:
        raise ValueError(f"weight {index} is absent")
    return shape


def _same(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"operands differ in shape: {shapes}")
    return shapes[0]


def _first(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return shapes[0]


def _normed(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    for weight in weights:
        if weight is not None and weight != (shapes[0][1],):
            raise ValueError(f"a gain or bias of shape {weight} for rows of {shapes[0][1]} features")
    return shapes[0]


def _head_normed(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    head_dim = _integer(attributes, "head_dim")
    features = shapes[0][1]
    if weights[0] != (head_dim,) or not isinstance(features, int) or features % head_dim:
        raise ValueError(f"gain {weights[0]} and head_dim {head_dim} do not fit {features} features")
    return shapes[0]


def _embedded(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[0][0], _weight(weights, 0)[1])


def _added_row(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    rows, features = _weight(weights, 0)
    if features != shapes[0][1] or not 0 <= _integer(attributes, "index") < rows:
        raise ValueError(f"row {attributes['index']} of a table [{rows}, {features}] added to {shapes[0]}")
    return shapes[0]


def _linear(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    out, width = _weight(weights, 0)
    if shapes[0][1] != width:
        raise ValueError(f"operand has {shapes[0][1]} features, the weight [{out}, {width}] expects {width}")
    if weights[1] is not None and weights[1] != (out,):
        raise ValueError(f"bias {weights[1]} for {out} outputs")
    return (shapes[0][0], out)


def _quantized(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    width = shapes[0][1]
    assert isinstance(width, int)
    return (shapes[0][0], record_bytes(width, _records(attributes)))


def _linear_quantized(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    features = _integer(attributes, "features")
    if shapes[0][1] != record_bytes(features, _records(attributes)):
        raise ValueError(f"operand rows have {shapes[0][1]} bytes, not those of {features} features")
    return _linear(((shapes[0][0], features),), weights, attributes)


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


def _sliced(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    start, stop, width = _integer(attributes, "start"), _integer(attributes, "stop"), shapes[0][1]
    if not isinstance(width, int) or not 0 <= start < stop <= width:
        raise ValueError(f"slice [{start}, {stop}) of {width} features")
    return (shapes[0][0], stop - start)


def _concatenated(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    left, right = shapes[0][1], shapes[1][1]
    assert isinstance(left, int) and isinstance(right, int)
    return (shapes[0][0], left + right)


def _angles(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[0][0], 2 * _weight(weights, 0)[0])


def _heads(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[0][0], _integer(attributes, "heads") * _integer(attributes, "head_dim"))


def _halved(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    width = shapes[0][1]
    if not isinstance(width, int) or width % 2:
        raise ValueError(f"{width} features do not split into gate and up")
    return (shapes[0][0], width // 2)


def _pooled(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[1][0], shapes[0][1])


_ATTENTION = frozenset({"layer", "heads", "kv_heads", "head_dim", "scale", "window"})
_ROTARY = frozenset({"scale", "base", "factor", "original_context", "dynamic"})

OPERATORS: dict[str, Operator] = {
    "embedding": Operator(1, 1, frozenset(), _embedded),
    "add": Operator(2, 0, frozenset(), _same),
    "add_row": Operator(1, 1, frozenset({"index"}), _added_row),
    "rms_norm": Operator(1, 1, frozenset({"epsilon"}), _normed, frozenset({0})),
    "layer_norm": Operator(1, 2, frozenset({"epsilon"}), _normed),
    "head_norm": Operator(1, 1, frozenset({"epsilon", "head_dim"}), _head_normed),
    "linear": Operator(1, 2, frozenset(), _linear, frozenset({1})),
    "quantize_rows": Operator(1, 0, frozenset({"records"}), _quantized, dtype="u8"),
    "linear_quantized": Operator(1, 2, frozenset({"features", "records"}), _linear_quantized, frozenset({1})),
    "slice": Operator(1, 0, frozenset({"start", "stop"}), _sliced),
    "select_row": Operator(2, 0, frozenset(), _selected, dtype=None),
    "concat": Operator(2, 0, frozenset(), _concatenated),
    "rope_angles": Operator(1, 1, _ROTARY, _angles),
    "rope": Operator(2, 0, frozenset({"head_dim"}), _first),
    "attention": Operator(6, 0, _ATTENTION, _heads),
    "qkv_append": Operator(
        5, 2, frozenset({"layer", "heads", "kv_heads", "head_dim", "epsilon"}), _heads, frozenset({0, 1})
    ),
    "cached_attention": Operator(4, 0, _ATTENTION, _heads),
    "span_attention": Operator(5, 0, frozenset({"heads", "head_dim", "scale"}), _heads),
    "qkv_span_attention": Operator(3, 0, frozenset({"heads", "head_dim", "scale"}), _heads),
    "activation": Operator(1, 0, frozenset({"function"}), _first),
    "gated": Operator(2, 0, frozenset({"function"}), _same),
    "gated_pair": Operator(1, 0, frozenset({"function"}), _halved),
    "pool": Operator(3, 0, frozenset({"mode", "normalize"}), _pooled),
}
"""Every legal operator by name."""


def infer_type(
    kind: str, operands: tuple[TensorType, ...], weights: WeightShapes, attributes: Attributes
) -> TensorType:
    """Return the result type of an operation; ValueError says what does not fit."""
    operator = OPERATORS.get(kind)
    if operator is None:
        raise ValueError(f"no operator is called {kind!r}")
    if len(operands) != operator.operands or len(weights) != operator.weights:
        raise ValueError(
            f"got {len(operands)} operands and {len(weights)} weights, "
            f"expected {operator.operands} and {operator.weights}"
        )
    if set(attributes) != operator.attributes:
        raise ValueError(f"got attributes {sorted(attributes)}, expected {sorted(operator.attributes)}")
    for index, shape in enumerate(weights):
        if shape is None and index not in operator.optional:
            raise ValueError(f"weight {index} is required")
    function = attributes.get("function")
    if function is not None and function not in ACTIVATIONS:
        raise ValueError(f"unknown activation {function!r} (known: {', '.join(ACTIVATIONS)})")
    dtype = operands[0].dtype if operator.dtype is None else operator.dtype
    return TensorType(dtype, operator.infer(tuple(t.shape for t in operands), weights, attributes))
