"""The versions of functions that libraries have for many rows, and which a number of rows takes.

| version | libraries that multiply | rows |
|---|---|---|
| scale_folded | with folded scales | FOLDED_TOKENS and more |
| scale_folded_whole | so too | of those, multiples of INTERLEAVED_TOKENS: whole groups of interleaved rows |
| amx | by AMX | TILE_TOKENS and more |

A graph has those that differ (`Graph.versions`): `scale_folded_whole` is else `scale_folded`, and all are else the
function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pyc.backends.cpu.constants import FOLDED_TOKENS, INTERLEAVED_TOKENS, TILE_TOKENS
from pyc.backends.cpu.isa import GemmStrategy
from pyc.compiler.ir import Function, Graph

Version = Literal["", "scale_folded", "scale_folded_whole", "amx"]
"""A version's name; "" is the function itself."""

_ELSE: dict[Version, Version] = {"scale_folded": "", "scale_folded_whole": "scale_folded", "amx": ""}
"""What stands for a version that a graph does not have."""

_MANY: dict[GemmStrategy, int] = {"simd": 1, "scale_folded": FOLDED_TOKENS, "amx": TILE_TOKENS}
"""From so many rows on, a GEMM strategy is another than SIMD."""


def are_many(rows: int, strategy: GemmStrategy) -> bool:
    """Whether libraries of a GEMM strategy take it for so many rows."""
    return strategy != "simd" and rows >= _MANY[strategy]


def version_of(rows: int, strategy: GemmStrategy) -> Version:
    """Return the version that libraries of a GEMM strategy take for so many rows."""
    if strategy == "simd" or not are_many(rows, strategy):
        return ""
    if strategy == "amx":
        return "amx"
    return "scale_folded" if rows % INTERLEAVED_TOKENS else "scale_folded_whole"


def find_version(graph: Graph, name: str, version: Version) -> Function:
    """Return a version of the function called `name`, or what stands for it; KeyError when there is no function."""
    known = {(function.name, function.version) for function in graph.versions}
    while version and (name, version) not in known:
        version = _ELSE[version]
    return graph.function(name, version)


def rewrite_version(graph: Graph, version: Version, rewrite: Callable[[Function], Function]) -> Graph:
    """Return the graph with one version of every function rewritten; it has those that the rewrite changes."""
    kept = [function for function in graph.versions if function.version != version]
    for function in graph.functions:
        before = find_version(graph, function.name, version)
        after = rewrite(before)
        if after.operations != before.operations or before.version == version:
            kept.append(replace(after, version=version))
    return Graph(graph.functions, tuple(kept))
