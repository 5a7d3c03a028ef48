"""Whether this process may start threads, and has room for them."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

from pyc.runtime.host.signal_handlers import unless_signalled

THREAD_BYTES = 24 << 20
"""Addresses that a thread takes: its stack, and what Python and the C library keep for it."""


def has_room_for_a_thread() -> bool:
    """Whether a limit on this process's addresses (ulimit -v) leaves room for another thread.

    `Thread.start` waits for the thread to say that it has begun, and for ever for one that had no memory to.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return True
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except unless_signalled(OSError):  # no /proc, or no descriptor
        return True
    return limit - pages * resource.getpagesize() >= THREAD_BYTES


def may_start_threads(count: int) -> bool:
    """Start `count` threads, which end at once, and return whether all were there together."""
    end = threading.Lock()
    started: list[threading.Thread] = []

    def wait() -> None:
        with end:
            pass

    try:
        with end:
            for _ in range(count):
                thread = threading.Thread(target=wait, daemon=True)
                thread.start()
                started.append(thread)
    except RecursionError:
        raise
    except RuntimeError:  # can't start new thread
        return False
    finally:
        for thread in started:
            thread.join()
    return True
