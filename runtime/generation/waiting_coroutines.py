"""Coroutines that wait for a token: one thread runs the steps for all of them, while any waits.

A coroutine must not run a step itself, as its event loop would stand still meanwhile. Nor does each take a thread of
the loop's executor, which has few: those of requests in the queue would hold all of them until a slot is free, and
requests that run, and whatever else the program gives to that executor, would wait for the end of others (ADR 23).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyc.runtime.errors import RunError
from pyc.runtime.generation.queued import Queued
from pyc.runtime.host import forks

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

LINGER_S = 0.05
"""How long the thread stays when nobody waits: longer than most coroutines take to ask for their next token."""

Step = Callable[[Queued], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A coroutine that waits for what its request asks for; `step` brings that nearer."""

    request: Queued
    step: Step
    loop: AbstractEventLoop
    future: Future[None]

    @property
    def has_left(self) -> bool:
        """Whether the coroutine waits no more."""
        return self.future.done() or self.loop.is_closed()


class WaitingCoroutines:
    """The coroutines that wait for requests of one model. Those of several event loops may."""

    def __init__(self) -> None:
        self._guard = forks.ForkSafeLock()
        self._waiters: dict[_Waiter, None] = {}  # in the order in which they came
        self._thread: threading.Thread | None = None
        self._arrived = threading.Event()
        forks.tell(self)

    async def wait(self, request: Queued, step: Step) -> None:
        """Wait until a request has what is asked for, or nothing is to come. `step` runs a step for it, on the thread.

        Raises what `step` raises for this request, and RunError without an event loop of asyncio, and where no thread
        is to be had.
        """
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RunError("async for: no event loop of asyncio runs here; use `for`, in a thread") from None
        waiter = _Waiter(request, step, loop, loop.create_future())
        with self._guard.lock:
            self._waiters[waiter] = None
            self._arrived.set()
            try:
                self._begin()
            except BaseException:
                self._waiters.pop(waiter, None)
                raise
        await waiter.future

    def _begin(self) -> None:
        """Start the thread, unless there is one. A second one, where Ctrl-C came before this one was noted, is none
        too many: steps take turns."""
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=self._run, name="pyc steps for coroutines")
        try:
            thread.start()
        except RuntimeError as error:
            raise RunError(f"async for: {error}; raise the limit of threads (ulimit -u), or read in threads") from error
        self._thread = thread

    def _run(self) -> None:
        while True:
            self._arrived.clear()
            if unserved := self._wake_served():
                first = unserved[0]
                try:
                    first.step(first.request)
                except BaseException as error:  # noqa: BLE001 -- it is raised where the request is waited for
                    self._leave(first, error)
            elif not self._arrived.wait(LINGER_S) and self._is_over():
                return

    def _wake_served(self) -> list[_Waiter]:
        """Wake the coroutines that have what they wait for; return the others, in the order in which they came."""
        with self._guard.lock:
            waiters = list(self._waiters)
        unserved: list[_Waiter] = []
        for waiter in waiters:
            if waiter.request.is_served or waiter.has_left:
                self._leave(waiter, None)
            else:
                unserved.append(waiter)
        return unserved

    def _is_over(self) -> bool:
        """Whether nobody waits, so that the thread ends: the next one begins another."""
        with self._guard.lock:
            if not self._waiters:
                self._thread = None
            return not self._waiters

    def _leave(self, waiter: _Waiter, error: BaseException | None) -> None:
        with self._guard.lock:
            self._waiters.pop(waiter, None)
        with suppress(RuntimeError):  # its event loop is closed
            waiter.loop.call_soon_threadsafe(_wake, waiter.future, error)

    def after_fork(self) -> None:
        """In a child: the thread is gone, and so are those who ran event loops."""
        self._waiters, self._thread, self._arrived = {}, None, threading.Event()


def _wake(future: Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
