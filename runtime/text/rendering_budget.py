"""The memory and processor time that a chat template may take while it is rendered.

Each AuthoredText that a rendering makes refers to its size class, one of a few objects: how many texts of a class are
there is how many references to it there are. So a text counts whatever made it and whatever holds it, stops to count
when it is no more, and no code of ours runs then, in which an interruption would be lost.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyc.runtime.errors import RunError

_LONGEST_BITS = 48
"""Of a text's size in bytes."""
_GROWTH, _LEAST_GROWTH = 4 << 20, 1 << 18
"""Bytes that are made between two looks at what is there, and at the clock."""


class RenderingBudget:
    """Texts that are there, and what was charged for good, `most_bytes` of both; `most_s` of the thread's time."""

    __slots__ = ("_charged", "_deadline", "_made", "_most", "_room", "_size_classes")

    def __init__(self, most_bytes: int, most_s: float) -> None:
        self._most = most_bytes
        self._deadline = time.thread_time() + most_s
        self._size_classes = [object() for _ in range(4 * _LONGEST_BITS)]
        self._charged = 0
        self._made = 0
        self._room = min(_GROWTH, most_bytes)

    def size_class(self, size_bytes: int) -> object:
        """What a text of that size, of 8 bytes at least, refers to as long as it is there. Raises RunError."""
        self._made += size_bytes
        if self._made > self._room:
            self.require(0)
        shift = size_bytes.bit_length() - 3
        return self._size_classes[4 * shift + (size_bytes >> shift) - 4]

    def charge(self, size_bytes: int) -> None:
        """Counts so many bytes for good. Raises RunError."""
        self._charged += size_bytes
        self._made += size_bytes
        if self._made > self._room:
            self.require(0)

    def require(self, size_bytes: int) -> None:
        """Raises RunError unless there is room for so many bytes, and time."""
        self.check_clock()
        left = self._most - self._charged - self.text_bytes()
        if left < size_bytes:
            raise RunError("chat template: it builds too much text; it may be meant to exhaust memory")
        self._made, self._room = 0, min(_GROWTH, max(_LEAST_GROWTH, left))

    def text_bytes(self) -> int:
        """The bytes of texts that are there, by a quarter too many at most."""
        references = [sys.getrefcount(each) for each in self._size_classes]
        own = references[0]  # to which no text refers
        return sum((count - own) * _largest(index) for index, count in enumerate(references) if count > own)

    def check_clock(self, expected_s: float = 0.0) -> None:
        """Raises RunError where the time is over, or will be in `expected_s`."""
        if time.thread_time() + expected_s > self._deadline:
            raise RunError("chat template: it takes too long; it may loop without end")

    @contextmanager
    def counting(self) -> Iterator[None]:
        """What this thread makes within it counts here."""
        former, rendering.budget = rendering.budget, self
        try:
            yield
        finally:
            rendering.budget = former


def _largest(index: int) -> int:
    """The size above those of the class at `index`: four classes for each power of two."""
    return (5 + index % 4) << index // 4


class _Rendering(threading.local):
    budget: RenderingBudget | None = None


rendering = _Rendering()
"""That which is under way in this thread."""
