"""Files that say whom this machine trusts: nobody but the user and root may write to them."""

import errno
import os
import shlex
import stat
from pathlib import Path

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.signal_handlers import unless_signalled


def unreadable(folder: Path, error: OSError, unknown: str) -> ArtifactError:
    """The error of a folder of the key store that cannot be read, so that `unknown` is not known."""
    remedy = ""
    if isinstance(error, NotADirectoryError) or error.errno == errno.ELOOP:
        remedy = "; set PYC_HOME to a folder"
    elif isinstance(error, PermissionError):
        remedy = f"; run: {_opening(folder)}"
    return ArtifactError(f"{folder}: cannot be read: {error.strerror}, so {unknown} is not known{remedy}")


def unwritable(path: Path, error: OSError) -> ArtifactError:
    """The error of a file of the key store that cannot be written."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space" if is_full else "set PYC_HOME to a folder for keys that can be"
    return ArtifactError(f"{path}: cannot be written: {error.strerror}; {remedy}")


def _opening(folder: Path) -> str:
    """The command by which a folder that this user may not read becomes readable. Of a folder on the way to it, where
    one may not be entered, it changes nothing below: private keys may lie there."""
    closed = next((each for each in reversed(folder.absolute().parents) if not os.access(each, os.X_OK)), None)
    return f"chmod a+x {shlex.quote(str(closed))}" if closed else f"chmod -R a+rX {shlex.quote(str(folder))}"


def require_private(path: Path, what: str) -> None:
    """Raise ArtifactError where others may write to a file, its folder, or that one's parent, and so could do `what` in
    the user's name.

    The user and root may own and write them. A group may write to the parent, which is so by default where each user
    has a group of their own.
    """
    _require_private((path, 0o022), (path.parent, 0o022), (path.parent.parent, 0o002), what=what)


def require_private_folder(folder: Path, what: str) -> None:
    """Raise ArtifactError as `require_private` does of any file in `folder`, also where none is there, since others may
    have removed it; a folder that is not there has nothing to tell."""
    if folder.is_dir():
        _require_private((folder, 0o022), (folder.parent, 0o002), what=what)


def _require_private(*places: tuple[Path, int], what: str) -> None:
    """Raise ArtifactError for the first place of another user, or whose mode has one of its forbidden bits."""
    for place, forbidden in places:
        try:
            status = place.stat()
        except unless_signalled(OSError) as error:
            raise ArtifactError(f"{place}: cannot be read: {error.strerror}") from error
        if status.st_uid not in (0, os.geteuid()):
            raise ArtifactError(
                f"{place}: belongs to user {status.st_uid}, who could {what} in your name; run: "
                f"chown {os.geteuid()} {shlex.quote(str(place))}, or set PYC_HOME to a folder of your own"
            )
        _refuse_writable(place, status.st_mode, forbidden, what)


def require_unwritable(path: Path, mode: int, what: str) -> None:
    """Raise ArtifactError where the mode of a file, of its open descriptor, lets others write to it, and so do `what`
    in the user's name.

    For a file that the user names, wherever it lies and whosever it is: one that a container mounts, say.
    """
    _refuse_writable(path, mode, 0o022, what)


def _refuse_writable(place: Path, mode: int, forbidden: int, what: str) -> None:
    if mode & forbidden:
        raise ArtifactError(
            f"{place}: others may write to it (mode {stat.S_IMODE(mode):o}), and so {what} in your "
            f"name; run: chmod go-w {shlex.quote(str(place))}"
        )
