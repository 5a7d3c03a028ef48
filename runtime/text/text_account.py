"""How much text is there while a chat template is rendered: each AuthoredText counts itself in its thread's account.

What counts itself cannot be forgotten, whatever made it and whatever holds it, and stops to count when it is no more.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyc.runtime.errors import RunError

_GROWTH = 4 << 20
"""Bytes after which the clock is looked at."""


class TextAccount:
    """The bytes that texts may take, `left` of them, and the processor time of the thread, in seconds.

    Texts take from `left` what they give back when they are no more, and call `grew` where it is below `low`.
    """

    __slots__ = ("_deadline", "left", "low")

    def __init__(self, most_bytes: int, most_s: float) -> None:
        self.left = most_bytes
        self.low = max(0, most_bytes - _GROWTH)
        self._deadline = time.thread_time() + most_s

    def grew(self) -> None:
        """Raises RunError where texts take too much, or making them takes too long."""
        self.check_clock()
        self.require(0)
        self.low = max(0, self.left - _GROWTH)

    def require(self, size_bytes: int) -> None:
        """Raises RunError unless so much is left."""
        if self.left < size_bytes:
            raise RunError("chat template: it builds too much text; it may be meant to exhaust memory")

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


class _Rendering(threading.local):
    account: TextAccount | None = None


rendering = _Rendering()
"""The account of the rendering under way in this thread."""
