"""Which weights attention of a step fetches to the second-level cache, for the layers behind it.

Attention of one sequence reads little and waits much: for some microseconds a layer memory has nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from pyc.backends.cuda.emit.calls import Context, is_linear
from pyc.compiler.ir import Function

is_chosen = False
"""Whether it does. No GPU has measured it yet: tests/gpu does, beside what is."""
MOST_BYTES = 24 << 20
"""Half of the second-level cache of an H100 or H200, and about what its memory moves in the time of attention."""
_MOST_LAYERS = 2


def with_prefetched_weights(function: Function, context: Context) -> Context:
    """Return the context with the weights of layers behind each append_attention of one row, where there is room."""
    if not is_chosen:
        return context
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for index, attention in enumerate(function.operations):
        if attention.kind != "append_attention" or context.shapes[attention.operands[0]][0] != 1:
            continue
        left = MOST_BYTES
        taken: list[tuple[str, int]] = []
        for layer in filter(is_linear, function.operations[index:]):
            if left and len(taken) < _MOST_LAYERS:
                size_bytes = min(context.weights[layer.weights[0]].size_bytes, left) // 16 * 16
                taken.append((layer.weights[0], size_bytes))
                left -= size_bytes
        found[attention.result.name] = tuple(taken)
    return replace(context, prefetched=found)
