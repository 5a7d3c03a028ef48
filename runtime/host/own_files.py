"""Whether a file that is there under a name which anybody can tell is this user's own.

In a folder that others may write to, they may make a file under such a name first. Whoever then writes into it writes
into their file, which they may change at any time, or, by a link, into another file of this user's.
"""

import contextlib
import os
import stat
from pathlib import Path

from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.temporary_files import temporary_path
from pyc.runtime.host.umask import current_umask

_OTHERS_WRITE = 0o022


def why_not_own(found: os.stat_result, path: Path) -> str | None:
    """Return why the file that was found at `path` must not be written into, as "belongs to user 1"; None where it is
    this user's own, which nobody else may write to but as the umask lets them.

    A file system that gives every file one owner and one mode, whoever made it, is told by a new file beside it.
    """
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if found.st_nlink > 1:
        return f"has {found.st_nlink} names, and what is written to one changes the others"
    foreign = found.st_mode & _OTHERS_WRITE & current_umask()
    if found.st_uid == os.geteuid() and not foreign:
        return None
    new = _new_file(path)
    if new is not None and found.st_uid == new.st_uid and not foreign & ~new.st_mode:
        return None
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    return f"can be written by others (mode {stat.S_IMODE(found.st_mode):o})"


def has_this_owner(found: os.stat_result, path: Path) -> bool:
    """Whether the file that was found at `path` is a regular one of this user, be it that others may write to it, or
    that it has other names."""
    if not stat.S_ISREG(found.st_mode):
        return False
    new = None if found.st_uid == os.geteuid() else _new_file(path)
    return found.st_uid == (os.geteuid() if new is None else new.st_uid)


def _new_file(path: Path) -> os.stat_result | None:
    """What a file is that this user makes beside `path`, for nobody else; None where none can be made."""
    temporary = temporary_path(path)
    try:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except unless_signalled(OSError):
        return None
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            temporary.unlink()
