"""A pipe that the command line names by its descriptor, as the shell's `<(...)` does: /dev/fd/63."""

from __future__ import annotations

import os
import re
import select
import stat
import time
from pathlib import Path

SECONDS = 120
"""How long whoever writes to it may take, who may be asked for a passphrase."""
_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})")
_FIRST = 3
"""Those before it are standard input and outputs."""


def read_given_pipe(path: Path, limit: int) -> bytes | None:
    """Return what the pipe holds until its end, or more than `limit` bytes of it; None where the path names none.

    Raises OSError, TimeoutError where it takes more than SECONDS.
    """
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None or int(found[1]) < _FIRST:
        return None
    descriptor = int(found[1])
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return None
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
