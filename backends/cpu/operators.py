"""The operators that passes of the CPU put in the place of logical ones; symbols are those of `compiler.operators`.

| operator | operands; weights | result |
|---|---|---|
| quantize_rows | x [T, K] {row_format} | u8 [T, row_bytes]: rows of int8 or bf16 (`layouts`) |
| round_fp8 | x [T, K] | [T, K]: rounded to e4m3 with a power of two for each row (`compiler.mxfp8`) |
| round_mxfp8 | x [T, K] | [T, K]: the same, with one for each block of 32 features |
| split_rows | x [T, K] | u8 [T, split_bytes]: three bf16 for each f32 (`layouts`) |
| linear_split | rows u8 [T, split_bytes]; weight [N, K], bias? [N] {features = K} | [T, N] |
| linear_quantized | rows u8 [T, row_bytes]; weight [N, K], bias? [N] {features = K, row_format} | [T, N] |

Beside them are those of `backends.lowering.operators`.

Fused operators, each of which is one kernel, take operands, weights and attributes of those that they stand for:

| operator | stands for |
|---|---|
| X_quantize: X is rms_norm, layer_norm, activation, gated, gated_pair | X, then quantize_rows of it |
| add_X_quantize: X is rms_norm, layer_norm {in_place} | add, then X_quantize of the sum, the second result |
| linear_append, linear_quantized_append | linear or linear_quantized, then qkv_append of it |
| linear_gated_quantize {..., function, makes} | linear_quantized, gated_pair, quantize_rows to format `makes` |
| cached_attention_quantize | cached_attention, then quantize_rows of it |

`in_place`: nothing reads the addends afterwards, so the sum takes the first one's memory, the norm the other's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast, get_args

from pyc.backends.cpu.layouts import quantized_row_bytes, split_bytes
from pyc.backends.cpu.row_formats import RowFormat
from pyc.backends.lowering.operators import APPEND, LOWERED_OPERATORS, infer_half
from pyc.compiler.ir import Dimension, Scalar
from pyc.compiler.operators import (
    OPERATORS,
    Attributes,
    Operator,
    Shapes,
    WeightShapes,
    infer_heads,
    infer_linear,
    integer_attribute,
)


def _quantized_rows(shape: tuple[Dimension, ...], row_format: Scalar) -> tuple[Dimension, ...]:
    """Return the shape of the quantized rows."""
    rows, width = shape
    assert isinstance(width, int)
    return (rows, quantized_row_bytes(width, _known(row_format)))


def _quantized(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return _quantized_rows(shapes[0], attributes["row_format"])


def _rounded(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    return shapes[0]


def _split(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    rows, width = shapes[0]
    assert isinstance(width, int)
    return (rows, split_bytes(width))


def _linear_split(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    features = integer_attribute(attributes, "features")
    if shapes[0][1] != split_bytes(features):
        raise ValueError(f"operand rows have {shapes[0][1]} bytes, not those of {features} features in pieces")
    return infer_linear(((shapes[0][0], features),), weights, attributes)


def _linear_quantized(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    features = integer_attribute(attributes, "features")
    if shapes[0][1] != quantized_row_bytes(features, _known(attributes["row_format"])):
        raise ValueError(f"operand rows have {shapes[0][1]} bytes, not those of {features} features")
    return infer_linear(((shapes[0][0], features),), weights, attributes)


def _known(value: Scalar) -> RowFormat:
    for known in get_args(RowFormat):
        if value == known:
            return cast(RowFormat, known)
    raise ValueError(f"row format {value!r} is unknown")


def _added(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    """Infer a norm of a sum."""
    total = OPERATORS["add"].infer(shapes, (), {})
    return OPERATORS["rms_norm"].infer((total,), weights, attributes)


def _appended(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    infer = _linear_quantized if "row_format" in attributes else infer_linear
    heads = integer_attribute(attributes, "heads") + 2 * integer_attribute(attributes, "kv_heads")
    rows, width = infer(shapes[:1], weights[:2], attributes)
    if width != heads * integer_attribute(attributes, "head_dim"):
        raise ValueError(f"the matmul has {width} features, not those of {heads} heads")
    return (rows, *infer_heads(shapes, weights, attributes)[1:])


def _linear_gated(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
    gate_up = _linear_quantized(shapes, (*weights, None), attributes)
    return _quantized_rows(infer_half((gate_up,), (), attributes), attributes["makes"])


def _then_quantized(operator: Operator) -> Operator:
    """Return the operator of an operation over rows, and quantize_rows of its result."""

    def infer(shapes: Shapes, weights: WeightShapes, attributes: Attributes) -> tuple[Dimension, ...]:
        return _quantized_rows(operator.infer(shapes, weights, attributes), attributes["row_format"])

    return replace(operator, attributes=operator.attributes | {"row_format"}, infer=infer, dtype="u8")


def _of_sum(norm: Operator) -> Operator:
    """Return the operator of a norm of a sum; the sum is its second result."""
    attributes = norm.attributes | {"in_place"}
    return replace(norm, operands=2, attributes=attributes, infer=_added, rowwise=(0, 1), also=(0,))


_QUANTIZED = frozenset({"features", "row_format"})

_LOWERED: dict[str, Operator] = {
    "quantize_rows": Operator(1, 0, frozenset({"row_format"}), _quantized, dtype="u8", rowwise=(0,)),
    "round_fp8": Operator(1, 0, frozenset(), _rounded, rowwise=(0,)),
    "round_mxfp8": Operator(1, 0, frozenset(), _rounded, rowwise=(0,)),
    "split_rows": Operator(1, 0, frozenset(), _split, dtype="u8", rowwise=(0,)),
    "linear_split": Operator(
        1, 2, frozenset({"features"}), _linear_split, optional=frozenset({1}), role="matmul", rowwise=(0,)
    ),
    "linear_quantized": Operator(
        1, 2, _QUANTIZED, _linear_quantized, optional=frozenset({1}), role="matmul", rowwise=(0,)
    ),
    **LOWERED_OPERATORS,
}

_QUANTIZING: dict[str, Operator] = {
    "rms_norm_quantize": _then_quantized(OPERATORS["rms_norm"]),
    "layer_norm_quantize": _then_quantized(OPERATORS["layer_norm"]),
    "activation_quantize": _then_quantized(OPERATORS["activation"]),
    "gated_quantize": _then_quantized(OPERATORS["gated"]),
    "gated_pair_quantize": _then_quantized(_LOWERED["gated_pair"]),
    "add_rms_norm_quantize": _then_quantized(_of_sum(OPERATORS["rms_norm"])),
    "add_layer_norm_quantize": _then_quantized(_of_sum(OPERATORS["layer_norm"])),
}

_FUSED: dict[str, Operator] = {
    "linear_append": Operator(5, 4, APPEND, _appended, optional=frozenset({1, 2, 3}), role="matmul"),
    "linear_quantized_append": Operator(
        5, 4, APPEND | _QUANTIZED, _appended, optional=frozenset({1, 2, 3}), role="matmul"
    ),
    "linear_gated_quantize": Operator(
        1, 1, _QUANTIZED | {"function", "makes"}, _linear_gated, dtype="u8", role="matmul", rowwise=(0,)
    ),
    "cached_attention_quantize": _then_quantized(_LOWERED["cached_attention"]),
}

CPU_OPERATORS = {**_LOWERED, **_QUANTIZING, **_FUSED}
"""Those alone."""

QUANTIZING_ROWS = frozenset(_QUANTIZING)
"""Those over rows, each for itself, that quantize what they make."""

ALL_OPERATORS = {**OPERATORS, **CPU_OPERATORS}
"""What a module of the CPU may consist of while its passes run."""

MATMULS = frozenset(name for name, operator in ALL_OPERATORS.items() if operator.role == "matmul")
"""Operations that multiply by a packed matrix."""

READ_QUANTIZED_ROWS = frozenset(name for name in MATMULS if "row_format" in ALL_OPERATORS[name].attributes)
"""Those that multiply quantized rows."""


def rounds_attention(kinds: Iterable[str]) -> bool:
    """Return whether attention may round to bf16 in a function of these operations: every matmul of it rounds too."""
    matmuls = MATMULS.intersection(kinds)
    return bool(matmuls) and matmuls <= READ_QUANTIZED_ROWS
