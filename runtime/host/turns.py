"""Locks of what threads share, in a process that may fork.

A child has none but the thread that forked. A lock that another thread held at that moment is never given back there,
and what it guards was left half done. So it is lost: who asks for it in the child gets an error instead of waiting for
ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar, TypeVarTuple

from pyc.runtime.errors import RunError
from pyc.runtime.host import forks

PATIENCE_S = 0.1

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class Turns:
    """A lock that the thread which holds it may enter again, as a signal handler or a finalizer does.

    A lock of Python is not fair: a thread that gives it back and takes it at once has it again before a sleeping one
    wakes. So work of many short steps is done by `run`, which announces itself before it waits for the lock. Threads
    that come later wait for the end of what was announced (`wait`), and then look whether there is anything left to do.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_lost = False
        self._announced: tuple[int, threading.Lock] | None = None
        forks.tell(self)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The lock itself: Ctrl-C cannot strike between its taking and what gives it back. Raises RunError where it
        is lost."""
        if self._is_lost:
            raise RunError(
                "this process was forked while another thread was using the model; load the artifact again in the child"
            )
        return self._lock

    def run(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Call `work` with the lock, and let threads that come later wait until it is over. Raises as `lock` does."""
        going_on = threading.Lock()
        going_on.acquire()
        turn = self._announced = threading.get_ident(), going_on
        try:
            with self.lock:
                return work(*arguments)
        finally:
            if self._announced is turn:
                self._announced = None
            going_on.release()

    def wait(self) -> bool:
        """Wait until the turn that was announced last is over; whether it is.

        False when there is none, when it is this thread's own, which a signal handler must not wait for, and after
        PATIENCE_S: an interruption may have struck before its end was told.
        """
        turn = self._announced
        if turn is None or turn[0] == threading.get_ident() or not turn[1].acquire(timeout=PATIENCE_S):
            return False
        turn[1].release()
        return True

    def after_fork(self) -> None:
        """In a child: find out whether a thread that is not there holds the lock."""
        self._announced = None
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._is_lost = True
