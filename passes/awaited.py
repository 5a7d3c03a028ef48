"""Work given to a pool of threads, and done by whoever waits for it when no thread takes it.

Where memory is short a thread can end before its first line: the pool counts on it, and what it was to do stays undone,
so that a plain `Future.result` would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE_S = 2.0
"""How long a thread may take to begin. One that begins later costs nothing: the work is done here by then."""


class Awaited(Generic[T]):
    """A call that a pool makes; `result` returns what it returned, and raises what it raised."""

    __slots__ = ("_future", "_task")

    def __init__(self, pool: Executor, task: Callable[[], T]) -> None:
        self._task = task
        self._future = pool.submit(task)

    def done(self) -> bool:
        """Whether the result is there."""
        return self._future.done()

    def cancel(self) -> None:
        """Do not begin, if nobody has."""
        self._future.cancel()

    def result(self) -> T:
        """Wait for the result; what no thread has begun by then is done by this one."""
        while not wait((self._future,), PATIENCE_S).done:
            if self._future.cancel():
                return self._task()
        return self._future.result()
