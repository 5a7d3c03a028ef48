"""Work given to a pool of threads, and done by whoever waits for it when no thread takes it.

A pool of `Workers` is waited for to its end: `Thread.join` takes a thread for ended whose wait is interrupted (CPython
before 3.13), and a process that ends while one of its threads is in compiled code ends by SIGABRT.

Where memory is short a thread can end before its first line: the pool counts on it, and what it was to do stays undone,
so that a plain `Future.result` would wait for ever. Where the system has no more threads, `submit` raises RuntimeError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
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


class Workers(ThreadPoolExecutor):
    """A pool whose `shutdown`, and the end of its `with` block, lasts until nothing runs on its threads any more."""

    def __init__(self, workers: int, name: str) -> None:
        super().__init__(workers, thread_name_prefix=name)
        self._open: set[Future[object]] = set()

    def submit(self, task: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread call `task`. Raises RuntimeError where the system has no more threads."""
        future = super().submit(task, *args, **kwargs)
        self._open.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._open.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more, and wait for what runs, whatever interrupts that; the first interruption is raised then."""
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        interruption: BaseException | None = None
        while wait and (left := tuple(self._open)):
            try:
                _end(left)
            except BaseException as error:  # noqa: BLE001 -- raised below
                interruption = interruption or error
        super().shutdown(wait)
        if interruption is not None:
            raise interruption


def _end(futures: tuple[Future[object], ...]) -> None:
    """Wait for calls, and cancel what no thread has begun by then: none may be there that would."""
    for future in wait(futures, PATIENCE_S).not_done:
        future.cancel()
