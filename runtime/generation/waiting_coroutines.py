"""Coroutines that wait for a token: one thread runs the steps for all of them, while any waits.

A coroutine must not run a step itself, as its event loop would stand still meanwhile. Nor does each take a thread of
the loop's executor, which has few: those of requests in the queue would hold all of them until a slot is free, and
requests that run, and whatever else the program gives to that executor, would wait for the end of others (ADR 23).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pyc.runtime.errors import RunError
from pyc.runtime.generation.queued import Queued
from pyc.runtime.host import forks

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

LINGER_S = 0.05
"""How long the thread stays when nobody waits: longer than most coroutines take to ask for their next token."""

FORK_PATIENCE_S = 2.0
"""How long a fork waits for the end of a step of the thread: in a step, the child would be without the model."""

Step = Callable[[Queued], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A coroutine that waits for what its request asks for; `step` brings that nearer."""

    step: Step
    loop: AbstractEventLoop
    future: Future[None]

    @property
    def has_left(self) -> bool:
        """Whether the coroutine waits no more."""
        return self.future.done() or self.loop.is_closed()

    def wake(self, error: BaseException | None) -> None:
        """Let the coroutine go on, or raise `error` in it. From any thread."""
        with suppress(RuntimeError):  # its event loop is closed
            self.loop.call_soon_threadsafe(_end, self.future, error)


class WaitingCoroutines:
    """The coroutines that wait for requests of one model. Those of several event loops may."""

    def __init__(self) -> None:
        self._guard = forks.ForkSafeLock()
        self._stepping = forks.ForkSafeLock(FORK_PATIENCE_S)
        self._waiting: dict[Queued, list[_Waiter]] = {}  # in the order in which they came
        self._thread: threading.Thread | None = None
        self._arrived: SimpleQueue[None] = SimpleQueue()  # one for each that came since the thread looked
        self._served: deque[Queued] = deque()  # in the step that the thread is at
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
        waiter = _Waiter(step, loop, loop.create_future())
        try:
            with self._guard.lock:
                self._waiting.setdefault(request, []).append(waiter)
                request.tell = self._told
                self._begin()
            if request.is_served:  # since before it had whom to tell
                return
            self._arrived.put(None)
            await waiter.future
        finally:
            self._leave(request, waiter)

    def _told(self, request: Queued) -> None:
        """A request is served. Those of a step of the thread are told behind it, when the model is free again."""
        if threading.current_thread() is self._thread:
            self._served.append(request)
        else:
            self._wake(request)

    def _wake(self, request: Queued, error: BaseException | None = None) -> None:
        """Wake the coroutines that wait for a request: it is served, or a step for it failed. From any thread."""
        with self._guard.lock:
            waiters = self._waiting.pop(request, ())
        for waiter in waiters:
            waiter.wake(error)

    def _leave(self, request: Queued, waiter: _Waiter) -> None:
        with self._guard.lock:
            waiters = self._waiting.get(request, [])
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters:
                self._waiting.pop(request, None)

    def _begin(self) -> None:
        """Start the thread, unless there is one. A second one, where Ctrl-C came before this one was noted, is none
        too many: steps take turns.

        It is a daemon: the threads of the event loops keep the process alive as long as they are meant to.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=self._run, name="pyc steps for coroutines", daemon=True)
        try:
            thread.start()
        except RecursionError:
            raise
        except RuntimeError as error:
            raise RunError(f"async for: {error}; raise the limit of threads (ulimit -u), or read in threads") from error
        self._thread = thread

    def _run(self) -> None:
        while True:
            with suppress(Empty):
                while True:
                    self._arrived.get_nowait()
            if found := self._first():
                request, step = found
                while self._stepping.is_wanted_by_a_fork:
                    time.sleep(0.001)
                try:
                    with self._stepping.lock:
                        step(request)
                except BaseException as error:  # noqa: BLE001 -- it is raised where the request is waited for
                    self._wake(request, error)
                while self._served:
                    self._wake(self._served.popleft())
            else:
                try:
                    self._arrived.get(timeout=LINGER_S)
                except Empty:
                    if self._is_over():
                        return

    def _first(self) -> tuple[Queued, Step] | None:
        """The request that has been waited for longest, and its step.

        Whoever is served is told so; an interruption may have struck before, and so each is looked at when it is first.
        """
        while True:
            with self._guard.lock:
                request = next(iter(self._waiting), None)
                if request is None:
                    return None
                waiters = self._waiting[request]
                if not request.is_served and not all(waiter.has_left for waiter in waiters):
                    return request, waiters[0].step
            self._wake(request)

    def _is_over(self) -> bool:
        """Whether nobody waits, so that the thread ends: the next one begins another."""
        with self._guard.lock:
            if not self._waiting:
                self._thread = None
            return not self._waiting

    def after_fork(self) -> None:
        """In a child: the thread is gone, and so are those who ran event loops."""
        self._waiting, self._thread, self._arrived, self._served = {}, None, SimpleQueue(), deque()


def _end(future: Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
