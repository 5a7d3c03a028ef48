"""One process at a time changes the key store: what it reads first still holds when it writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyc.runtime.host.home import find_home_directory, make_folder
from pyc.runtime.host.signal_handlers import unless_signalled

PATIENCE_S = 10.0
"""How long a change by another process is waited for."""
LOCK = ".lock"
"""A file of <home>, for its owner alone: whoever may open one may lock it."""
_held = threading.local()


@contextlib.contextmanager
def changing_store(home: Path | None = None) -> Iterator[None]:
    """Have no other process change whom this machine trusts meanwhile. What is called within may say so, too."""
    folder, before = home or find_home_directory(), getattr(_held, "folder", None)
    if folder is None or before == folder:
        yield
        return

    def opened() -> int:
        make_folder(folder, 0o755)
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)

    with _locked(opened):
        _held.folder = folder
        try:
            yield
        finally:
            _held.folder = before


@contextlib.contextmanager
def making_keys(folder: Path) -> Iterator[None]:
    """Have no other process make keys in a folder, which is its owner's alone, meanwhile."""

    def opened() -> int:
        make_folder(folder, 0o700)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    with _locked(opened):
        yield


@contextlib.contextmanager
def _locked(opened: Callable[[], int]) -> Iterator[None]:
    """Have the lock of what is opened, unless another process has it for PATIENCE_S, or the file system has none."""
    try:
        descriptor = opened()
    except unless_signalled(OSError):  # which is an error of its own to who writes there
        yield
        return
    try:
        latest_s = time.monotonic() + PATIENCE_S
        while not _is_locked(descriptor) and time.monotonic() < latest_s:
            time.sleep(0.01)
        yield
    finally:
        with contextlib.suppress(OSError):  # closing alone leaves it to a child that was forked meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_UN)
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
