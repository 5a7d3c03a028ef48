"""Where the values of a function lie in its workspace, and which launches have to wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyc.runtime.host.rounding import round_up

ALIGNMENT_BYTES = 256
"""Kernels take buffers that begin at a multiple of it."""


class Workspace:
    """Hands out ranges of memory, and takes them back: the lowest that is free and large enough."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []
        self.size_bytes = 0

    def take(self, size_bytes: int) -> int:
        """Return the offset of new memory."""
        size = round_up(max(size_bytes, 1), ALIGNMENT_BYTES)
        for index, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                rest = [(start + size, stop)] if stop - start > size else []
                self._free[index : index + 1] = rest
                return start
        start = self.size_bytes
        if self._free and self._free[-1][1] == self.size_bytes:  # the last free range grows
            start, _ = self._free.pop()
        self.size_bytes = start + size
        return start

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Take back what `take` returned."""
        size = round_up(max(size_bytes, 1), ALIGNMENT_BYTES)
        ranges = sorted([*self._free, (offset, offset + size)])
        merged = [ranges[0]]
        for start, stop in ranges[1:]:
            if start == merged[-1][1]:
                merged[-1] = (merged[-1][0], stop)
            else:
                merged.append((start, stop))
        self._free = merged


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [start, stop) of a piece of memory that has a name."""

    memory: str
    start: int
    stop: int

    def overlaps(self, other: Range) -> bool:
        """Whether both have a byte."""
        return self.memory == other.memory and self.start < other.stop and other.start < self.stop


@dataclass
class Order:
    """Finds the launches that each has to wait for: those that write what it touches, or read what it writes."""

    _reads: list[tuple[Range, ...]] = field(default_factory=list)
    _writes: list[tuple[Range, ...]] = field(default_factory=list)
    _before: list[int] = field(default_factory=list)
    """For each launch those that end before it begins, as bits."""

    def add(self, reads: Sequence[Range], writes: Sequence[Range]) -> tuple[int, ...]:
        """Return the numbers of launches that the next one waits for, none that another of them waits for."""
        waits: list[int] = []
        before = 0
        for number in reversed(range(len(self._writes))):
            if before >> number & 1 or not self._meets(number, reads, writes):
                continue
            waits.append(number)
            before |= self._before[number] | 1 << number
        self._reads.append(tuple(reads))
        self._writes.append(tuple(writes))
        self._before.append(before)
        return tuple(reversed(waits))

    def _meets(self, number: int, reads: Sequence[Range], writes: Sequence[Range]) -> bool:
        made, read = self._writes[number], self._reads[number]
        return (
            any(one.overlaps(other) for one in reads for other in made)
            or any(one.overlaps(other) for one in writes for other in made)
            or any(one.overlaps(other) for one in writes for other in read)
        )
