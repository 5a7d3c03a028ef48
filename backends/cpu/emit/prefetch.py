"""Which matmul's weights come after those of another, and are prefetched while threads have nothing else to do."""

from __future__ import annotations

from itertools import pairwise

from pyc.backends.cpu.operators import MATMULS
from pyc.compiler.ir import Function, Graph, Operation

_NEXT = {"forward": "logits", "prompt": "logits", "logits": "forward"}
"""The function that a decoder runs after one, whose first matmul's weights are prefetched early."""


def next_weights(function: Function, graph: Graph) -> dict[str, str]:
    """Return the weight that the matmul after each reads, by the result of the one before."""
    following = [f for f in graph.functions if f.name == _NEXT.get(function.name)]
    then = [_matmuls(f)[0] for f in following if _matmuls(f)]
    in_order = pairwise([*_matmuls(function), *then])
    return {before.result.name: after.weights[0] for before, after in in_order}


def _matmuls(function: Function) -> list[Operation]:
    return [operation for operation in function.operations if operation.kind in MATMULS]
