"""The threads of libraries, as the system lists them under their name.

A thread that has been joined may be listed for a moment longer, and one that has been started has its name a moment
later: so these wait. Threads of others, which come and go meanwhile, are not counted.
"""

import contextlib
import os
import time
from pathlib import Path

NAME = "pyc-kernels"  # as in templates/cpu/thread_pool.c
PATIENCE = 10.0  # seconds


def kernel_threads() -> list[int]:
    found = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended since
            if Path(f"/proc/self/task/{task}/comm").read_text().strip() == NAME:
                found.append(int(task))
    return found


def become(count: int) -> int:
    """How many there are, after so long that it can be `count`."""
    end = time.monotonic() + PATIENCE
    while len(kernel_threads()) != count and time.monotonic() < end:
        time.sleep(0.001)
    return len(kernel_threads())
