"""The versions of functions that libraries have for many rows, and which a number of rows takes.

| version | libraries that multiply | rows |
|---|---|---|
| folded | with folded scales | FOLDED_TOKENS and more |
| folded_whole | so too | of those, multiples of RECORD_TOKENS: whole groups of interleaved records |
| tiles | by the tile unit | TILE_TOKENS and more |

A graph has those that differ (`Graph.versions`): `folded_whole` is else `folded`, and all are else the function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from pyc.backends.cpu.constants import FOLDED_TOKENS, RECORD_TOKENS, TILE_TOKENS
from pyc.backends.cpu.isa import Products
from pyc.compiler.ir import Function, Graph

Version = Literal["", "folded", "folded_whole", "tiles"]
"""A version's name; "" is the function itself."""

_ELSE: dict[Version, Version] = {"folded": "", "folded_whole": "folded", "tiles": ""}
"""What stands for a version that a graph does not have."""

_MANY: dict[Products, int] = {"vectors": 1, "folded": FOLDED_TOKENS, "tiles": TILE_TOKENS}
"""From so many rows on, a way of multiplying is another than by vectors."""


def are_many(rows: int, products: Products) -> bool:
    """Whether libraries that multiply by `products` do so with so many rows."""
    return products != "vectors" and rows >= _MANY[products]


def version_of(rows: int, products: Products) -> Version:
    """Return the version that libraries which multiply by `products` take for so many rows."""
    if products == "vectors" or not are_many(rows, products):
        return ""
    if products == "tiles":
        return "tiles"
    return "folded" if rows % RECORD_TOKENS else "folded_whole"


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
