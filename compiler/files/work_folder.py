"""Folders for files of a build while it lasts: removed when done with, when a signal ends it, or by a later build.

Whoever uses a folder holds a lock on it. One that nobody has locked was left by a build that was killed (SIGKILL, loss
of power); `sweep` removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyc.runtime.errors import LowerError
from pyc.runtime.host import unfinished
from pyc.runtime.host.temporary_files import create_locked_folder

logger = logging.getLogger(__name__)

_name = re.compile(r"pyc-(cc|ld|tvm|zig|calibration|eval|export|wheels|pip|report)-[0-9a-f]{16}")
_COMPILERS = ("cc", "ld", "tvm", "zig")
"""Purposes whose failure is one of lowering; that of others is the system's."""
_LIMITS = {
    errno.EMFILE: "raise the limit (ulimit -n)",
    errno.EFBIG: "raise the limit (ulimit -f)",
}
"""Remedies that no other folder is."""
_ATTEMPTS = 5


@contextlib.contextmanager
def work_folder(purpose: str) -> Iterator[Path]:
    """Yield a new, empty folder that only this user can read, `pyc-<purpose>-...` in $TMPDIR; removed afterwards.

    Raises OSError, or LowerError for a compiler's folder, that says which setting to change when none can be made, or
    when there is no space for its files.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = _make(purpose, stack)
        except OSError as error:
            place = error.filename or "$TMPDIR, /tmp"
            remedy = _LIMITS.get(error.errno or 0, "set TMPDIR to a folder that can be written and has space")
            reason = f"{error.strerror or error}; {remedy}"
            if purpose in _COMPILERS:
                raise LowerError(f"no folder for temporary files: {place}: {reason}") from error
            raise OSError(error.errno, f"no folder for temporary files: {reason}", place) from error
        try:
            yield folder
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            remedy = _LIMITS.get(error.errno, "free some space or set TMPDIR to another folder")
            reason = f"{error.strerror}; {remedy}"
            if purpose in _COMPILERS:
                raise LowerError(f"{folder}: {reason}") from error
            raise OSError(error.errno, reason, str(folder)) from error


def leftovers() -> list[Path]:
    """Return the folders that killed builds of this user left."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if _name.fullmatch(entry.name) and (descriptor := abandoned(entry.path)) is not None:
                os.close(descriptor)
                found.append(Path(entry.path))
    return sorted(found)


def sweep() -> int:
    """Remove what killed builds of this user left; returns how many folders that were."""
    count = 0
    for path in leftovers():
        descriptor = abandoned(path)
        if descriptor is not None:
            _remove(path)
            os.close(descriptor)
            count += 1
    if count:
        logger.info("removed %d folders of builds that were killed", count)
    return count


def _make(purpose: str, stack: contextlib.ExitStack) -> Path:
    made: list[Path] = []

    def drop() -> None:
        for path in made:
            _remove(path)

    def make() -> Path:
        made.append(Path(tempfile.gettempdir()) / f"pyc-{purpose}-{secrets.token_hex(8)}")
        made[-1].mkdir(mode=0o700)
        return made[-1]

    stack.callback(drop)
    stack.enter_context(unfinished.held(drop))
    stack.callback(os.close, create_locked_folder(make))
    return made[-1]


def abandoned(path: str | Path) -> int | None:
    """Return a descriptor of a folder, locked, when it is this user's and nobody holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove(path: Path) -> None:
    """Remove a folder in which a program that was killed may still make a file."""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
