"""What a chat template may take while it is rendered: bytes of what is there, and processor time.

Each AuthoredText that a rendering makes takes a ticket of its account, one of a few objects, by its size: how many of a
size are there is how many references their ticket has. So what is there counts whatever made it and whatever holds it,
stops to count when it is no more, and no code of ours runs then, in which an interruption would be lost.
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


class TextAccount:
    """Texts that are there, and what was charged for good, `most_bytes` of both; `most_s` of the thread's time."""

    __slots__ = ("_charged", "_deadline", "_made", "_most", "_room", "_tickets")

    def __init__(self, most_bytes: int, most_s: float) -> None:
        self._most = most_bytes
        self._deadline = time.thread_time() + most_s
        self._tickets = [object() for _ in range(4 * _LONGEST_BITS)]
        self._charged = 0
        self._made = 0
        self._room = min(_GROWTH, most_bytes)

    def ticket(self, size_bytes: int) -> object:
        """What a text of that size, of 8 bytes at least, holds as long as it is there. Raises RunError."""
        self._made += size_bytes
        if self._made > self._room:
            self.require(0)
        shift = size_bytes.bit_length() - 3
        return self._tickets[4 * shift + (size_bytes >> shift) - 4]

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
        references = [sys.getrefcount(ticket) for ticket in self._tickets]
        own = references[0]  # which no text takes
        return sum((count - own) * _largest(index) for index, count in enumerate(references) if count > own)

    def check_clock(self, expected_s: float = 0.0) -> None:
        """Raises RunError where the time is over, or will be in `expected_s`."""
        if time.thread_time() + expected_s > self._deadline:
            raise RunError("chat template: it takes too long; it may loop without end")

    @contextmanager
    def counting(self) -> Iterator[None]:
        """What this thread makes within it counts here."""
        former, rendering.account = rendering.account, self
        try:
            yield
        finally:
            rendering.account = former


def _largest(index: int) -> int:
    """The size above those that have the ticket at `index`: four tickets for each power of two."""
    return (5 + index % 4) << index // 4


class _Rendering(threading.local):
    account: TextAccount | None = None


rendering = _Rendering()
"""The account of the rendering under way in this thread."""
