"""Work given to a pool of threads, and done by whoever waits for it when no thread takes it.

Where memory is short a thread can end before its first line: the pool counts on it, and what it was to do stays undone,
so that a plain `Future.result` would wait for ever. Where the system has no more threads, `submit` raises RuntimeError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE_S = 2.0
"""How long a thread may take to begin. One that begins later costs nothing: the work is done here by then."""


class Awaited(Generic[T]):
    """A call that a pool makes; `result` returns what it returned, and raises what it raised."""

    __slots__ = ("_future", "_task")

    def __init__(self, pool: Executor, task: Callable[[], T]) -> None:
        self._task = task
        self._future: Future[T] | None = None
        with contextlib.suppress(RuntimeError):  # no more threads; if the pool has others, one may do it for nothing
            self._future = pool.submit(task)

    def done(self) -> bool:
        """Whether the result is there."""
        return self._future is not None and self._future.done()

    def cancel(self) -> None:
        """Do not begin, if nobody has."""
        if self._future is not None:
            self._future.cancel()

    def result(self) -> T:
        """Wait for the result, as often as asked; what no thread has begun by then is done by this one, once."""
        while self._future is not None and not wait((self._future,), PATIENCE_S).done:
            if self._future.cancel():
                self._future = None
        if self._future is None:
            value = self._task()
            self._future = Future()
            self._future.set_result(value)
        return self._future.result()
