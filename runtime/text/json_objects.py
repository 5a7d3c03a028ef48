"""Objects in JSON that somebody else wrote: RFC 8259 leaves names that occur twice to the reader."""

from __future__ import annotations

MOST_CHARACTERS = 100
"""Of a name in a message."""


def unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the object of `pairs`, as `object_pairs_hook` of `json.loads`. Raises ValueError, which shows the name,
    where one occurs twice."""
    table = dict(pairs)
    if len(table) != len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                shown = name if len(name) <= MOST_CHARACTERS else name[:MOST_CHARACTERS] + "..."
                raise ValueError(f"the name {shown!r} occurs twice in one object")
            seen.add(name)
    return table
