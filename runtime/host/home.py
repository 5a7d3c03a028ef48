"""Where a user's keys and measurements live, and how a file is put there and read."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.temporary_files import create, sweep, sync_folder, temporary_path

NO_HOME = (
    "no folder for keys: PYC_HOME and XDG_CONFIG_HOME are not set, and this user has no home directory that "
    "it may enter; set PYC_HOME to the folder that holds (or is to hold) keys/ and trusted/"
)


def user_home() -> Path | None:
    """Return the user's home directory as $HOME or the system's list of users has it; None if neither is a path, or is
    no folder, or one that this user may not enter. One that is not there is made where something is to be written."""
    if os.environ.get("HOME") == "":  # which Path takes for the root
        return None
    try:
        home = Path.home()
        os.stat(os.path.join(home, "."))  # within it; Path would leave the dot out
    except RecursionError:
        raise
    except (RuntimeError, PermissionError, NotADirectoryError):
        return None  # containers: no HOME and an unknown user, or another user's HOME; system users: /dev/null
    except unless_signalled(OSError):
        pass
    return home if home.is_absolute() else None


def find_home_directory() -> Path | None:
    """Return the folder: $PYC_HOME, else $XDG_CONFIG_HOME/pyc, else ~/.config/pyc; None where there is no home."""
    if own := os.environ.get("PYC_HOME"):
        return Path(own).absolute()
    if base := os.environ.get("XDG_CONFIG_HOME"):
        return Path(base).absolute() / "pyc"
    home = user_home()
    return home / ".config" / "pyc" if home else None


def home_directory() -> Path:
    """Return the folder as `find_home_directory` does, whether it is there yet or not.

    Raises ArtifactError, which says what to set, without one and where none can be, as below a file.
    """
    found = find_home_directory()
    if found is None:
        raise ArtifactError(NO_HOME)
    existing, problem = nearest_existing(found)
    if problem:
        raise ArtifactError(f"{found}: {existing} {problem}, so keys cannot be kept below it; set PYC_HOME to a folder")
    return found


def nearest_existing(path: Path) -> tuple[Path, str]:
    """Return the nearest of an absolute path and its parents that is there, be it a link that leads nowhere, and why
    nothing can be below it, as "is not a folder"; "" if it is one. Raises nothing, whatever this user may enter."""
    existing = next(each for each in (path, *path.parents) if os.path.lexists(each))
    try:
        return existing, "" if stat.S_ISDIR(existing.stat().st_mode) else "is not a folder"
    except PermissionError:  # a link into a folder that this user may not enter
        return existing, "cannot be entered"
    except unless_signalled(OSError):  # a link to nothing, or to itself
        return existing, "is not a folder"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; raises OSError for what is no regular file, which could block or have no end, and reads
    raise it for what is one by its mode alone, as /proc/kmsg."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return io.BufferedReader(_NeverWaiting(descriptor))


class _NeverWaiting(io.FileIO):
    """A file without anything to read now raises BlockingIOError, where Python's reads give None."""

    def readinto(self, buffer: Any, /) -> int:
        read: int | None = super().readinto(buffer)
        return read if read is not None else self._nothing()

    def readall(self) -> bytes:
        read: bytes | None = super().readall()
        return read if read is not None else self._nothing()

    @staticmethod
    def _nothing() -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def make_folder(path: Path, mode: int) -> None:
    """Make a folder of `mode`, and those that it is in of 0o755, where they are not there yet.

    The umask may take from both modes. Where it takes nothing, everybody may write to a folder of pathlib's default
    mode, and whom this machine trusts is not read from such a folder (private_files.py). Raises OSError.
    """
    try:
        os.mkdir(path, mode)
    except FileNotFoundError:
        if path.parent.is_dir():  # as /proc, in which nothing can be made
            raise
        make_folder(path.parent, 0o755)
        make_folder(path, mode)
    except unless_signalled(OSError):
        if not path.is_dir():
            raise


def write_whole(path: Path, text: str, mode: int, *, replace: bool) -> bool:
    """Write a file whole or not at all; without `replace` an existing one wins and False is returned.

    A folder that has to be made is for everybody to read where the file is. Raises OSError, and leaves nothing then;
    what a killed writer left, the next one of the same file removes.
    """
    make_folder(path.parent, 0o755 if mode & 0o044 else 0o700)
    sweep(path)
    temporary = temporary_path(path)
    try:
        while (descriptor := create(temporary, os.O_WRONLY, mode)) is None:
            temporary = temporary_path(path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:  # open, and so locked, as long as it has that name
            file.write(text)
            file.flush()
            os.fsync(descriptor)
            if replace:
                temporary.replace(path)
            else:
                os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        try:
            temporary.unlink(missing_ok=True)
        except unless_signalled(OSError):  # the next writer tries again
            pass
    try:
        sync_folder(path.parent)
    except unless_signalled(OSError):  # some network file systems cannot
        pass
    return True
