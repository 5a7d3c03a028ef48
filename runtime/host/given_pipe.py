"""A pipe that the command line names: by its descriptor, as /dev/stdin and the shell's `<(...)` do (/dev/fd/63), or by
its name in a folder (mkfifo)."""

from __future__ import annotations

import os
import re
import select
import stat
import time
from pathlib import Path

from pyc.runtime.errors import ArtifactError

_REMEDY = "let the shell make one, as <(...) does"
SECONDS = 120
"""How long whoever writes to it may take, who may be asked for a passphrase."""
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})|/dev/stdin")
_OUTPUTS = (1, 2)


def read_given_pipe(path: Path, limit: int, *, is_given: bool = False, forbidden: int = 0o022) -> bytes | None:
    """Return what the pipe holds until its end, or more than `limit` bytes of it; None where the path names none.

    With `is_given` the user names the path, so a pipe that lies in a folder is meant, and not whatever somebody put in
    the place of a file. It has to be the user's or root's. `forbidden` are the bits that no pipe's mode may have, which
    is asked of what was opened: its name may be gone, or be another file's, when it has been read.

    Raises ArtifactError for a pipe that is refused, OSError, TimeoutError where it takes more than SECONDS.
    """
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is not None:
        descriptor = int(found[1] or 0)
        if descriptor in _OUTPUTS or not stat.S_ISFIFO(mode := os.fstat(descriptor).st_mode):
            return None
        _require_mode(path, mode, forbidden)
        return _read(descriptor, limit)
    if not is_given or not stat.S_ISFIFO(os.stat(path).st_mode):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISFIFO(status.st_mode):  # a file took its place
            return None
        if status.st_uid not in (0, os.geteuid()):
            raise ArtifactError(f"{path}: refused: a pipe of user {status.st_uid}; {_REMEDY}")
        _require_mode(path, status.st_mode, forbidden)
        return _read(descriptor, limit)
    finally:
        os.close(descriptor)


def _require_mode(path: Path, mode: int, forbidden: int) -> None:
    """Raise ArtifactError for a pipe through which another user could say anything, or read what is secret."""
    if mode & forbidden:
        what = "read or write to" if forbidden & 0o044 else "write to"
        raise ArtifactError(
            f"{path}: refused: a pipe that others may {what} (mode {stat.S_IMODE(mode):o}); {_REMEDY}"
        )


def _read(descriptor: int, limit: int) -> bytes:
    """What comes until the last writer leaves; of a pipe that nobody has opened to write yet, when somebody has."""
    deadline_s = time.monotonic() + SECONDS
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    data = bytearray()
    while len(data) <= limit:
        if not waiting.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            raise TimeoutError(0, f"nothing came for {SECONDS} s")
        piece = os.read(descriptor, limit + 1 - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)
