"""What must not outlive the process: files on their way, and programs that it started.

A process that a signal ends cannot wait for threads that are in compiled code. So who makes something that is not to
stay registers how to drop it, before it exists, and makes it inside `making`:

    with unfinished.held(lambda: path.unlink(missing_ok=True)):
        with unfinished.making():
            unfinished.require_going_on()
            file = open(path, "xb")
        ...

`drop_all` then leaves nothing, however far each thread has come: it takes what is registered back, and whoever makes
something after it gets KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TypeVar

from pyc.runtime.host.forks import ForkSafeLock

Drop = Callable[[], None]
Result = TypeVar("Result")

_making = ForkSafeLock(make=Lock)
_programs: dict[int, Drop] = {}
_files: dict[int, Drop] = {}
_ended = False


def making() -> contextlib.AbstractContextManager[object]:
    """Hold off the end of the process meanwhile; short, and begun by `require_going_on`.

    It is the lock itself, and no generator around it: an exception of a signal handler that came as that went on would
    keep it, and so the lock, and who makes something while that exception is handled would wait for ever.
    """
    lock: contextlib.AbstractContextManager[object] = _making.lock
    return lock


def whole(change: Callable[[], Result]) -> Result:
    """Call `change`, which takes back what it did where it is interrupted; the process ends after that, however slow
    the disk is. `change` does not use `making`. Raises KeyboardInterrupt once the end has begun."""
    with _making.lock:
        require_going_on()
        return change()


def require_going_on() -> None:
    """Raise KeyboardInterrupt once the end of the process has begun. Called in `making`."""
    if _ended:
        raise KeyboardInterrupt


@contextlib.contextmanager
def held(drop: Drop) -> Iterator[None]:
    """Have `drop` called if the process ends inside: it removes a file or folder, which need not exist (yet)."""
    key = id(drop)
    _files[key] = drop
    try:
        yield
    finally:
        _files.pop(key, None)


@contextlib.contextmanager
def running(kill: Drop) -> Iterator[None]:
    """Have `kill` called if the process ends inside: it ends a program, which may have ended. Called in `making`."""
    key = id(kill)
    _programs[key] = kill
    try:
        yield
    finally:
        _programs.pop(key, None)


def kill_programs() -> None:
    """End every program that runs, and have no further one started."""
    global _ended
    with _making.lock:
        _ended = True
        for kill in list(_programs.values()):
            with contextlib.suppress(OSError):
                kill()


def drop_all() -> None:
    """End every program, then remove every file and folder; nothing new is made from now on."""
    kill_programs()
    for drop in list(_files.values()):
        with contextlib.suppress(OSError):
            drop()


def resume() -> None:
    """Let things be made again: the process goes on after all."""
    global _ended
    _ended = False
