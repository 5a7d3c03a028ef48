"""Chooses one option for each of several items: the least sum of losses within a number of bytes.

That is a multiple-choice knapsack. `choose` solves it by dynamic programming over bytes in units of which all sizes are
multiples, and so exactly; where that would be more than MOST_UNITS units they are larger, sizes are rounded up to them,
and what is left over is then given to the options that save most.

`path` goes through the choices that are best for their own bytes at some price of a byte: of an item's options only
those on the lower convex hull of (bytes, loss) are, and steps on the hulls come in the order of what they save for a
byte (Sinha and Zoltners, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MOST_UNITS = 1 << 17


@dataclass(frozen=True, slots=True)
class Option:
    """What an item takes and costs under a scheme."""

    scheme: str
    size_bytes: int
    loss: float


Choice = tuple[int, ...]
"""The number of the option of each item."""


@dataclass(frozen=True, slots=True)
class _Step:
    """From one option on an item's hull to the next: `gain` is the loss that it saves for a byte."""

    item: int
    before: int
    after: int
    size_bytes: int
    gain: float


def smallest(items: Sequence[Sequence[Option]]) -> Choice:
    """Return the option of fewest bytes of each item; of equals, that of the least loss, then the first."""
    return tuple(_hull(options)[0] for options in items)


def path(items: Sequence[Sequence[Option]]) -> tuple[Choice, ...]:
    """Return the choices that are optimal for their bytes, from the smallest to that of the least loss."""
    found = [smallest(items)]
    for step in _steps(items):
        found.append((*found[-1][: step.item], step.after, *found[-1][step.item + 1 :]))
    return tuple(found)


def choose(items: Sequence[Sequence[Option]], budget_bytes: int) -> Choice | None:
    """Return the choice of the least loss within a number of bytes; None when the smallest exceeds it."""
    left = budget_bytes - size_of(items, smallest(items))
    if left < 0:
        return None
    table = _Table(items, left)
    found = table.choice(len(table.losses) - 1)
    return _filled(items, found, budget_bytes - size_of(items, found))


def fewest(items: Sequence[Sequence[Option]], loss: float) -> Choice | None:
    """Return a choice of fewest bytes, to a unit of rounding, whose loss is at most this; None when there is none."""
    table = _Table(items, None)
    kept = np.flatnonzero(table.losses <= loss)
    return table.choice(int(kept[0])) if kept.size else None


class _Table:
    """`losses`: the least for each number of units more than the smallest choice takes, up to `most_bytes` or all."""

    def __init__(self, items: Sequence[Sequence[Option]], most_bytes: int | None) -> None:
        least = smallest(items)
        more = [
            [option.size_bytes - options[first].size_bytes for option in options]
            for options, first in zip(items, least, strict=True)
        ]
        most = sum(map(max, more))
        if most_bytes is not None:
            most = min(most, most_bytes)
        unit = math.gcd(*(size for sizes in more for size in sizes)) or 1
        unit *= -(-(most // unit + 1) // MOST_UNITS)
        self._units = [[-(-size // unit) for size in sizes] for sizes in more]
        if most_bytes is None:
            most = unit * sum(map(max, self._units))
        self.losses = np.zeros(most // unit + 1)
        self._taken = [self._add(options, sizes) for options, sizes in zip(items, self._units, strict=True)]

    def _add(self, options: Sequence[Option], sizes: Sequence[int]) -> NDArray[np.uint8]:
        """Let `losses` count an item, and return the option that it takes for each number of units."""
        count = len(self.losses)
        best, taken = np.full(count, np.inf), np.zeros(count, np.uint8)
        for index in sorted(range(len(options)), key=lambda index: (sizes[index], options[index].loss, index)):
            size = sizes[index]
            if size < count:
                found = self.losses[: count - size] + options[index].loss
                is_better = found < best[size:]
                best[size:][is_better] = found[is_better]
                taken[size:][is_better] = index
        self.losses = best
        return taken

    def choice(self, units: int) -> Choice:
        """Return the choice of the least loss within so many units more than the smallest."""
        chosen: list[int] = []
        for taken, sizes in zip(reversed(self._taken), reversed(self._units), strict=True):
            chosen.append(int(taken[units]))
            units -= sizes[chosen[-1]]
        return tuple(reversed(chosen))


def _filled(items: Sequence[Sequence[Option]], choice: Choice, left: int) -> Choice:
    """Return the choice with what is left given to options that save, the largest saving first."""
    chosen = list(choice)
    while True:
        best: tuple[float, int, int, int] | None = None
        for item, options in enumerate(items):
            now = options[chosen[item]]
            for index, option in enumerate(options):
                saved, more = now.loss - option.loss, option.size_bytes - now.size_bytes
                if saved > 0 and more <= left and (best is None or saved > best[0]):
                    best = (saved, item, index, more)
        if best is None:
            return tuple(chosen)
        _, item, index, more = best
        chosen[item] = index
        left -= more


def size_of(items: Sequence[Sequence[Option]], choice: Sequence[int]) -> int:
    """Return the bytes of a choice."""
    return sum(options[index].size_bytes for options, index in zip(items, choice, strict=True))


def loss_of(items: Sequence[Sequence[Option]], choice: Sequence[int]) -> float:
    """Return the sum of the losses of a choice."""
    return sum(options[index].loss for options, index in zip(items, choice, strict=True))


def _hull(options: Sequence[Option]) -> list[int]:
    """Return the options on the lower convex hull: bytes ascend, losses fall, and ever less for a byte."""
    order = sorted(range(len(options)), key=lambda index: (options[index].size_bytes, options[index].loss, index))
    found: list[int] = []
    for index in order:
        if found and options[index].loss >= options[found[-1]].loss:
            continue
        while len(found) > 1 and _gain(options, found[-2], found[-1]) <= _gain(options, found[-1], index):
            found.pop()
        found.append(index)
    return found


def _gain(options: Sequence[Option], before: int, after: int) -> float:
    first, second = options[before], options[after]
    return (first.loss - second.loss) / (second.size_bytes - first.size_bytes)


def _steps(items: Sequence[Sequence[Option]]) -> list[_Step]:
    """Return the steps of all hulls, those that save most for a byte first; those of one item stay in order."""
    steps: list[_Step] = []
    for item, options in enumerate(items):
        hull = _hull(options)
        for before, after in pairwise(hull):
            more = options[after].size_bytes - options[before].size_bytes
            steps.append(_Step(item, before, after, more, _gain(options, before, after)))
    return sorted(steps, key=lambda step: -step.gain)
