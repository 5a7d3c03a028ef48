"""Lower attention to the kernels that exist: one that prepares a stacked QKV row, one that attends.

For decoders `attention(rope(head_norm(q)), rope(head_norm(k)), v)` becomes `qkv_append`, which normalises and
rotates the heads, appends keys and values to the cache and returns the rotated queries, and `cached_attention`.
For encoders `span_attention(q, k, v)` becomes `qkv_span_attention`. Both read one value that holds q, k and v side by
side: the stacked matmul where there is one, else a concatenation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation, TensorType, Value
from pyc.compiler.rewrite import map_functions, with_operations


@dataclass(frozen=True, slots=True)
class LowerAttention:
    """Splits attention into appending to the cache and attending, over stacked rows."""

    name: ClassVar[str] = "lower_attention"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("attention-lowered",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module without attention, rope and head_norm; AssertionError for a form no model builds."""
        return module.with_graph(map_functions(module.graph, _lower))


def _lower(function: Function) -> Function:
    definitions = function.definitions()
    operations: list[Operation] = []
    for operation in function.operations:
        if operation.kind == "attention":
            operations += _lower_cached(operation, definitions)
        elif operation.kind == "span_attention":
            stacked, qkv = _side_by_side(operation.operands[:3], operation, definitions)
            operands = (qkv, *operation.operands[3:])
            operations += [
                *stacked,
                Operation("qkv_span_attention", operation.result, operands, (), operation.attributes),
            ]
        else:
            operations.append(operation)
    return with_operations(function, operations, {})


def _lower_cached(attention: Operation, definitions: Mapping[str, Operation]) -> list[Operation]:
    q, k, v, *cache = attention.operands
    q_raw, q_gain, angles, epsilon = _prepared(q, definitions)
    k_raw, k_gain, k_angles, _ = _prepared(k, definitions)
    assert angles == k_angles, f"{attention.result.name}: queries and keys are rotated by different angles"
    stacked, qkv = _side_by_side((q_raw, k_raw, v), attention, definitions)
    attributes = dict(attention.attributes)
    rotated = Value(attention.result.name + ".queries", attention.result.type)
    kept = {key: attributes[key] for key in ("layer", "heads", "kv_heads", "head_dim")} | {"epsilon": epsilon}
    append = Operation("qkv_append", rotated, (qkv, angles, *cache), (q_gain, k_gain), tuple(sorted(kept.items())))
    attend = Operation("cached_attention", attention.result, (rotated.name, *cache), (), attention.attributes)
    return [*stacked, append, attend]


def _prepared(name: str, definitions: Mapping[str, Operation]) -> tuple[str, str, str, float]:
    """Return the raw value behind rope(head_norm(value)), the norm's gain or "", the angles, and epsilon."""
    rope = definitions[name]
    assert rope.kind == "rope", f"{name}: attention expects rotated queries and keys, got {rope.kind}"
    raw, angles = rope.operands
    normed = definitions.get(raw)
    if normed is not None and normed.kind == "head_norm":
        return normed.operands[0], normed.weights[0], angles, normed.number("epsilon")
    return raw, "", angles, 0.0


def _side_by_side(
    parts: tuple[str, ...], user: Operation, definitions: Mapping[str, Operation]
) -> tuple[list[Operation], str]:
    """Return the operations to add, and the value that holds `parts` one after another."""
    found = [definitions[part] for part in parts]
    if all(part.kind == "slice" for part in found) and len({part.operands for part in found}) == 1:
        base = definitions[found[0].operands[0]]
        ends = [0, *(part.integer("stop") for part in found)]
        starts = [part.integer("start") for part in found]
        if starts == ends[:-1] and base.result.type.shape[1] == ends[-1]:
            return [], base.result.name
    added: list[Operation] = []
    left = found[0].result
    for index, part in enumerate(found[1:]):
        widths = [left.type.shape[1], part.result.type.shape[1]]
        assert isinstance(widths[0], int) and isinstance(widths[1], int)
        shape = (left.type.shape[0], widths[0] + widths[1])
        value = Value(f"{user.result.name}.stacked{index}", TensorType("f32", shape))
        added.append(Operation("concat", value, (left.name, part.result.name)))
        left = value
    return added, left.name
