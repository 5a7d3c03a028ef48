"""Names for files on their way to their own: `.<name>.<pid>.<random>.tmp` beside the target.

A digest stands for a long name. Who fills one holds a lock on it as long as it has that name, so that the next writer
of the same target knows what a dead one left, and removes it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from pyc.runtime.host import unfinished
from pyc.runtime.host.signal_handlers import unless_signalled

LONG_NAME_BYTES = 200
MOST_TRIES = 16


def temporary_path(target: Path) -> Path:
    """Return a new name beside `target`."""
    return target.with_name(f".{_label(target)}.{os.getpid()}.{secrets.token_hex(8)}.tmp")


def create(path: Path, flags: int, mode: int) -> int | None:
    """Make an empty file of a temporary name, open with `flags` and locked; its descriptor, or None where another
    writer swept it before it was locked. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    lock(descriptor, wait=True)
    if os.fstat(descriptor).st_nlink:
        return descriptor
    os.close(descriptor)
    return None


def create_locked(named: Callable[[], Path], flags: int, mode: int = 0o600) -> int:
    """Make an empty file, for this user alone unless `mode` says more, open with `flags` and locked; its descriptor.

    `named` gives a new name for each try: a sweep of another process may remove the file before it is locked. Another
    sweep may then still be about to remove that name, so it is not used again. Raises OSError, after MOST_TRIES, too.
    """
    for _ in range(MOST_TRIES):
        path, descriptor, is_kept = named(), -1, False
        try:
            with unfinished.making():
                unfinished.require_going_on()
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            is_kept = _locks(descriptor, path)
        finally:
            if descriptor >= 0 and not is_kept:
                os.close(descriptor)
        if is_kept:
            return descriptor
    raise _swept(path)


def create_locked_folder(made: Callable[[], Path]) -> int:
    """Make a folder by `made`, which returns its path, a new one for each try; its descriptor, locked.

    Raises OSError as `create_locked` does.
    """
    for _ in range(MOST_TRIES):
        with unfinished.making():
            unfinished.require_going_on()
            path = made()
        descriptor, is_kept = -1, False
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            is_kept = _locks(descriptor, path)
        except FileNotFoundError:
            continue
        finally:
            if descriptor >= 0 and not is_kept:
                os.close(descriptor)
        if is_kept:
            return descriptor
    raise _swept(path)


def _locks(descriptor: int, path: Path) -> bool:
    """Lock what was made; whether its name still leads to it."""
    lock(descriptor, wait=True)
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _swept(path: Path) -> OSError:
    reason = f"other processes removed it {MOST_TRIES} times before it could be locked; try again"
    return OSError(errno.EAGAIN, reason, str(path))


def sweep(target: Path) -> None:
    """Remove what dead writers of `target` left. Raises OSError where the folder cannot be read."""
    pattern = re.compile(rf"\.{re.escape(_label(target))}\.\d+\.[0-9a-f]{{16}}\.tmp")
    for entry in list(os.scandir(target.parent)):
        if not pattern.fullmatch(entry.name):
            continue
        try:
            fd = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except unless_signalled(OSError):
            continue  # gone meanwhile, or another user's
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode) and lock(fd, wait=False):
                Path(entry.path).unlink(missing_ok=True)
        finally:
            os.close(fd)


def lock(fd: int, *, wait: bool) -> bool:
    """Whether the lock was taken; never on a file system without locks, so nothing is swept there."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except unless_signalled(OSError):
        return False
    return True


def sync_folder(path: Path) -> None:
    """Have the names in a folder reach the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _label(target: Path) -> str:
    """The target's name, or a digest in its place: the temporary name is longer, and must fit too."""
    encoded = os.fsencode(target.name)
    return target.name if len(encoded) <= LONG_NAME_BYTES else hashlib.sha256(encoded).hexdigest()
