"""The operators of the IR: arity, attributes, traits and result type of each, as one table.

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
| slice | x [T, H] {start, stop} | [T, stop - start] |
| concat | a [T, H], b [T, I] | [T, H + I] |
| rope_angles | positions [T] i32; inverse_frequencies [r/2] {scale, ...} | [T, r]: cosines, then sines |
| rope | x [T, h*d], angles [T, r] {head_dim} | rotates the first r features of each head, pairs (i, i + r/2) |
| attention | q, k, v, positions, sequences, block_table {layer, heads, kv_heads, ...} | [T, heads*d] |
| span_attention | q, k, v [T, heads*d], span_start, span_end {heads, head_dim, scale} | [T, heads*d] |
| activation | x [T, H] {function} | [T, H] |
| gated | gate [T, F], up [T, F] {function} | act(gate) * up |
| pool | x [T, H], seq_start [S], seq_end [S] {mode, normalize} | [S, H] |

These are the logical operators, which every backend understands. A backend's passes may put operators of its own in
their place, which it lists in a table as this one (`backends.cpu.operators`).

`attention` appends k and v of its rows to the cache of `layer` and attends to it. `window` 0 means unbounded.
Activation functions: "silu", "gelu" (erf), "gelu_tanh", "relu", "relu2" (its square).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pyc.compiler.ir import Dimension, Scalar, TensorType

Shapes = tuple[tuple[Dimension, ...], ...]
Attributes = Mapping[str, Scalar]
WeightShapes = tuple[tuple[int, ...] | None, ...]

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
"""Names that the attribute `function` may take."""


Role = Literal["matmul", "lookup", "other"]
"""What an operator does with its first weight: multiplies rows by the matrix, takes rows out of it, or neither."""


@dataclass(frozen=True, slots=True)
class Operator:
    """What a legal operation looks like; `infer` gives the result's shape or raises ValueError in words.

    Traits, which passes ask for: `rowwise` are the operands of which a row of the result depends on the same row alone;
    none are listed where it depends on more. `role`: see `Role`. `also`: for each further result, the operand whose
    type it has.
    """

    operands: int
    weights: int
    attributes: frozenset[str]
    infer: Callable[[Shapes, WeightShapes, Attributes], tuple[Dimension, ...]]
    optional: frozenset[int] = frozenset()
    dtype: str | None = "f32"
    """Of the result; None: that of the first operand."""
    rowwise: tuple[int, ...] = ()
    role: Role = "other"
    also: tuple[int, ...] = ()

    @property
    def has_matrix(self) -> bool:
        """Whether the first weight is a matrix, which schemes and layouts apply to."""
        return self.role != "other"


def integer_attribute(attributes: Attributes, key: str) -> int:
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
    head_dim = integer_attribute(attributes, "head_dim")
    features = shapes[0][1]
    if weights[0] != (head_dim,) or not isinstance(features, int) or features % head_dim:
        raise ValueError(f"gain {weights[0]} and head_dim {head_dim} do not fit {features} features")
    return shapes[0]


def _embedded(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[0][0], _weight(weights, 0)[1])


def _added_row(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    rows, features = _weight(weights, 0)
    if features != shapes[0][1] or not 0 <= integer_attribute(attributes, "index") < rows:
        raise ValueError(f"row {attributes['index']} of a table [{rows}, {features}] added to {shapes[0]}")
    return shapes[0]


def infer_linear(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    out, width = _weight(weights, 0)
    if shapes[0][1] != width:
        raise ValueError(f"operand has {shapes[0][1]} features, the weight [{out}, {width}] expects {width}")
    if weights[1] is not None and weights[1] != (out,):
        raise ValueError(f"bias {weights[1]} for {out} outputs")
    return (shapes[0][0], out)


def _sliced(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    start, stop, width = integer_attribute(attributes, "start"), integer_attribute(attributes, "stop"), shapes[0][1]
    if not isinstance(width, int) or not 0 <= start < stop <= width:
        raise ValueError(f"slice [{start}, {stop}) of {width} features")
    return (shapes[0][0], stop - start)


def _concatenated(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    left, right = shapes[0][1], shapes[1][1]
    assert isinstance(left, int) and isinstance(right, int)
    return (shapes[0][0], left + right)


def _angles(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[0][0], 2 * _weight(weights, 0)[0])


def infer_heads(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[0][0], integer_attribute(attributes, "heads") * integer_attribute(attributes, "head_dim"))


def _pooled(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return (shapes[1][0], shapes[0][1])


ATTENTION = frozenset({"layer", "heads", "kv_heads", "head_dim", "scale", "window"})
_ROTARY = frozenset({"scale", "base", "factor", "original_context", "dynamic"})

OPERATORS: dict[str, Operator] = {
    "embedding": Operator(1, 1, frozenset(), _embedded, role="lookup", rowwise=(0,)),
    "add": Operator(2, 0, frozenset(), _same, rowwise=(0, 1)),
    "add_row": Operator(1, 1, frozenset({"index"}), _added_row, rowwise=(0,)),
    "rms_norm": Operator(1, 1, frozenset({"epsilon"}), _normed, frozenset({0}), rowwise=(0,)),
    "layer_norm": Operator(1, 2, frozenset({"epsilon"}), _normed, rowwise=(0,)),
    "head_norm": Operator(1, 1, frozenset({"epsilon", "head_dim"}), _head_normed, rowwise=(0,)),
    "linear": Operator(1, 2, frozenset(), infer_linear, frozenset({1}), role="matmul", rowwise=(0,)),
    "slice": Operator(1, 0, frozenset({"start", "stop"}), _sliced, rowwise=(0,)),
    "concat": Operator(2, 0, frozenset(), _concatenated, rowwise=(0, 1)),
    "rope_angles": Operator(1, 1, _ROTARY, _angles, rowwise=(0,)),
    "rope": Operator(2, 0, frozenset({"head_dim"}), _first, rowwise=(0, 1)),
    "attention": Operator(6, 0, ATTENTION, infer_heads),
    "span_attention": Operator(5, 0, frozenset({"heads", "head_dim", "scale"}), infer_heads),
    "activation": Operator(1, 0, frozenset({"function"}), _first, rowwise=(0,)),
    "gated": Operator(2, 0, frozenset({"function"}), _same, rowwise=(0, 1)),
    "pool": Operator(3, 0, frozenset({"mode", "normalize"}), _pooled),
}
"""Every legal operator by name."""


def infer_types(
    kind: str,
    operands: tuple[TensorType, ...],
    weights: WeightShapes,
    attributes: Attributes,
    operators: Mapping[str, Operator] = OPERATORS,
) -> tuple[TensorType, ...]:
    """Return the types of all results of an operation; ValueError as of `infer_type`."""
    first = infer_type(kind, operands, weights, attributes, operators)
    return (first, *(operands[index] for index in operators[kind].also))


def infer_type(
    kind: str,
    operands: tuple[TensorType, ...],
    weights: WeightShapes,
    attributes: Attributes,
    operators: Mapping[str, Operator] = OPERATORS,
) -> TensorType:
    """Return the type of an operation's first result by a table of `operators`; ValueError says what does not fit."""
    operator = operators.get(kind)
    if operator is None:
        raise ValueError(f"no operator is called {kind!r}")
    if len(operands) != operator.operands or len(weights) != operator.weights:
        raise ValueError(
            f"got {len(operands)} operands and {len(weights)} weights, "
            f"expected {operator.operands} and {operator.weights}"
        )
    if attributes.keys() != operator.attributes:
        raise ValueError(f"got attributes {sorted(attributes)}, expected {sorted(operator.attributes)}")
    for index, shape in enumerate(weights):
        if shape is None and index not in operator.optional:
            raise ValueError(f"weight {index} is required")
    function = attributes.get("function")
    if function is not None and function not in ACTIVATIONS:
        raise ValueError(f"unknown activation {function!r} (known: {', '.join(ACTIVATIONS)})")
    dtype = operands[0].dtype if operator.dtype is None else operator.dtype
    return TensorType(dtype, operator.infer(tuple(t.shape for t in operands), weights, attributes))
