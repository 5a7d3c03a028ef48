"""Locks and objects of a process that forks.

A child has none but the thread that forked. A lock that another thread held at that moment is never given back there,
so who asks for it would wait for ever. What has to know of that is told (`tell`), and a lock for what is whole at each
moment, or may be done once more, is a `ForkSafeLock`: the child has one of its own. `Turns` (turns.py) is the lock of
what is left half done and cannot be used any more.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Forking(Protocol):
    """What is told of forks, on the thread that forks."""

    def after_fork(self) -> None:
        """In a child: the other threads are gone."""


_told: weakref.WeakValueDictionary[int, Forking] = weakref.WeakValueDictionary()
_locks: weakref.WeakValueDictionary[int, ForkSafeLock] = weakref.WeakValueDictionary()


def tell(one: Forking) -> None:
    """Call `one.after_fork` in each child that is forked while `one` exists."""
    _told[id(one)] = one


class ForkSafeLock:
    """A lock that a child of a fork never finds taken by a thread that it lacks.

    The thread that holds it may enter again, unless `make` says otherwise. A fork waits for `patience_s` until nobody
    else holds it, so that the child has what it guards as one thread left it.
    """

    def __init__(self, patience_s: float = 0.0, make: Callable[[], Any] = threading.RLock) -> None:
        self._patience_s = patience_s
        self._make = make
        self._lock = make()
        self._forking: dict[int, list[bool]] = {}  # by thread: whether it has the lock
        _locks[id(self)] = self

    @property
    def lock(self) -> Any:
        """The lock itself: Ctrl-C cannot strike between its taking and what gives it back."""
        return self._lock

    @property
    def is_wanted_by_a_fork(self) -> bool:
        """Whether a thread that forks waits for it: who holds it again and again leaves it alone for a while, as a lock
        of Python is not fair."""
        return bool(self._forking)

    def before_fork(self) -> None:
        """Take the lock, if it can be had: nobody else is at what it guards then."""
        taken = self._forking[threading.get_ident()] = []
        # One call takes it and notes it, so that no signal handler can raise between.
        taken.extend(map(self._lock.acquire, (True,), (self._patience_s,)))

    def after_fork_in_parent(self) -> None:
        """Give it back."""
        if any(self._forking.pop(threading.get_ident(), ())):
            self._lock.release()

    def after_fork(self) -> None:
        """In the child: give it back, or have another one where a thread holds it."""
        if any(self._forking.get(threading.get_ident(), ())):
            self._lock.release()
        elif not self._lock.acquire(blocking=False):
            self._lock = self._make()
        else:  # it came between
            self._lock.release()
        self._forking.clear()


def _alive(objects: weakref.WeakValueDictionary[int, Any]) -> list[Any]:
    """What is there of `objects`, which other threads may add to meanwhile."""
    return [found for reference in objects.valuerefs() if (found := reference()) is not None]


def _before_fork() -> None:
    for lock in _alive(_locks):
        lock.before_fork()


def _after_fork_in_parent() -> None:
    for lock in _alive(_locks):
        lock.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for one in (*_alive(_locks), *_alive(_told)):
        one.after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
