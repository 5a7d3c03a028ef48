"""Where a value of a recipe was written, for messages."""

from __future__ import annotations

from pyc.compiler.recipe.yaml import ListNode, MapNode, Mark, Node

MAX_SHOWN = 60
"""Letters of a value that a message shows."""


def shortened(text: str) -> str:
    """Return a value as messages show it, quoted and of few letters."""
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def find_node(node: Node, *path: str | int) -> Node | None:
    """Return the node below `node` at `path`, or None when it was not written."""
    found: Node | None = node
    for part in path:
        if isinstance(found, MapNode) and isinstance(part, str):
            found = found.get(part)
        elif isinstance(found, ListNode) and isinstance(part, int) and part < len(found.items):
            found = found.items[part]
        else:
            return None
    return found


def mark_of(node: Node, *path: str | int) -> Mark:
    """Return the mark of the node at `path`, or of the nearest one above it that was written."""
    for length in range(len(path), -1, -1):
        found = find_node(node, *path[:length])
        if found is not None:
            return found.mark
    return node.mark
