"""One process at a time changes a folder of the key store: what it reads first still holds when it writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyc.runtime.host.home import find_home_directory, make_folder
from pyc.runtime.host.signal_handlers import unless_signalled

PATIENCE_S = 10.0
"""How long a change by another process is waited for."""
_held = threading.local()


@contextlib.contextmanager
def changing_store(home: Path | None = None) -> Iterator[None]:
    """Have no other process change whom this machine trusts meanwhile. What is called within may say so, too."""
    folder = home or find_home_directory()
    if folder is None or getattr(_held, "folder", None) == folder:
        yield
        return
    with alone(folder, 0o755):
        _held.folder = folder
        try:
            yield
        finally:
            _held.folder = None


@contextlib.contextmanager
def alone(folder: Path, mode: int) -> Iterator[None]:
    """Have no other process be here for the same folder, made of `mode`, meanwhile, unless it takes PATIENCE_S, or the
    file system has no locks."""
    try:
        make_folder(folder, mode)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except unless_signalled(OSError):  # which is an error of its own to who writes there
        yield
        return
    try:
        latest_s = time.monotonic() + PATIENCE_S
        while not _is_locked(descriptor) and time.monotonic() < latest_s:
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether nobody else has a lock now; True where there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except unless_signalled(OSError):
        pass
    return True
