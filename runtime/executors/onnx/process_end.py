"""What ONNX Runtime needs where a process ends or forks: its code is C++ with threads, and outlives neither.

A thread that comes back from it while the interpreter ends is unwound through C++ and aborts the process. So at the end
no thread but the main one begins anything there, and what has begun is waited for.

What it destroys, sessions and what it has since its import, waits for threads that a forked child lacks. So in a child
sessions stay for ever, and after Python's own end the C library leaves without destructors.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from pyc.runtime.errors import RunError

LONGEST_RUN_S = 60.0
"""How long the end of a process waits for what has begun."""

PATIENCE_S = 5.0
"""How long a thread that begins something at the end is held, as the end takes it; then it gets an error, as somebody
waits for it."""

_sessions: weakref.WeakSet[Any] = weakref.WeakSet()
_running: dict[int, int] = {}
"""How many calls each thread is in, but for the main one, which is in none when the process ends."""

_is_ending = threading.Event()


def keep_in_children(session: object) -> None:
    """Keep a session of ONNX Runtime for ever in children of a fork."""
    _sessions.add(session)


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Hold the end of the process while ONNX Runtime is called. Raises RunError when it has begun."""
    thread = threading.get_ident()
    if thread == threading.main_thread().ident:
        yield
        return
    _running[thread] = _running.get(thread, 0) + 1
    try:
        if _is_ending.is_set():
            _running.pop(thread, None)
            time.sleep(PATIENCE_S)
            raise RunError("onnxruntime: the process is ending")
        yield
    finally:
        _leave(thread)


def _leave(thread: int) -> None:
    count = _running.get(thread, 0)
    if count > 1:
        _running[thread] = count - 1
    else:
        _running.pop(thread, None)


def _before_end() -> None:
    _is_ending.set()
    latest_s = time.monotonic() + LONGEST_RUN_S
    while _running and time.monotonic() < latest_s:
        time.sleep(0.001)


def _after_fork() -> None:
    _running.clear()
    if "onnxruntime" not in sys.modules:
        return
    for session in list(_sessions):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    library = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # a C library without on_exit
        library.on_exit(library._exit, None)


atexit.register(_before_end)
os.register_at_fork(after_in_child=_after_fork)
