"""Locks of what threads share, in a process that may fork.

A child has none but the thread that forked. A lock that another thread held at that moment is never given back there,
and what it guards was left half done. So it is lost: who asks for it in the child gets an error instead of waiting for
ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager

from pyc.runtime.errors import RunError


class Turns:
    """A lock that the thread which holds it may enter again, as a signal handler or a finalizer does."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_lost = False
        _all.add(self)

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The lock itself: Ctrl-C cannot strike between its taking and what gives it back. Raises RunError where it
        is lost."""
        if self._is_lost:
            raise RunError(
                "this process was forked while another thread was using the model; load the artifact again in the child"
            )
        return self._lock

    def after_fork(self) -> None:
        """In a child: find out whether a thread that is not there holds the lock."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._is_lost = True


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


def _after_fork() -> None:
    for turns in list(_all):
        turns.after_fork()


os.register_at_fork(after_in_child=_after_fork)
