"""Changes between two records: things by their names, as text before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Thing = TypeVar("_Thing")

LONGEST = 200
"""Characters of a value that `told` shows."""


@dataclass(frozen=True, slots=True)
class Change:
    """A thing by its name, as text before and after; None where it was not there, or is there no more."""

    name: str
    before: str | None
    after: str | None


def told(group: str, change: Change) -> str:
    """Return a change as a sentence about what an artifact records and what a build would record now."""
    return f"{group} {change.name}: {_shown(change.before)} in the artifact, {_shown(change.after)} now"


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """Return what is different in `after`, by name, in the order of `before`."""
    names = [*before, *(name for name in after if name not in before)]
    return tuple(
        Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def order_changes(name: str, before: Sequence[str], after: Sequence[str]) -> tuple[Change, ...]:
    """Return a change, called `name`, where what both have is in another order; else nothing."""
    both = set(before) & set(after)
    first, second = ([each for each in names if each in both] for names in (before, after))
    return () if first == second else (Change(name, ", ".join(first), ", ".join(second)),)


def by_name(pairs: Iterable[tuple[str, _Thing]]) -> dict[str, _Thing]:
    """Return things by names; the second of one name is called "name (2)", the third "name (3)", so that none is lost.

    The time is linear in their number, whatever their names: a header is anybody's.
    """
    found: dict[str, _Thing] = {}
    last: dict[str, int] = {}
    for name, thing in pairs:
        own = name
        while own in found:  # also where a thing is called "name (2)" itself
            last[name] = last.get(name, 1) + 1
            own = f"{name} ({last[name]})"
        found[own] = thing
    return found


def _shown(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= LONGEST else f"{value[:LONGEST]}..."
