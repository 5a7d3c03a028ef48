"""The last days of keys that announcements set, also of keys not known yet: one may come before that with the key.

    <home>/last-days/<fingerprint>    a line: the day
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pyc.runtime.artifact.trust.keys import parse_date, read_small_text
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import find_home_directory, home_directory, write_whole
from pyc.runtime.host.private_files import require_private, require_private_folder, unwritable
from pyc.runtime.host.signal_handlers import unless_signalled

LAST_DAYS = "last-days"


def last_day(fingerprint: str, home: Path | None = None) -> date | None:
    """The day that was set for a key, if one was. Raises ArtifactError for a file that is not as it has to be."""
    if home is None and find_home_directory() is None:
        return None
    path = _path(fingerprint, home)
    try:
        path.lstat()
    except FileNotFoundError:
        require_private_folder(path.parent, "extend keys")
        return None
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    require_private(path, "extend keys")
    return parse_date(read_small_text(path).strip(), str(path))


def set_last_day(fingerprint: str, day: date | None, home: Path | None = None) -> None:
    """Set the day, or none any more. Raises ArtifactError."""
    path = _path(fingerprint, home)
    try:
        if day is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, f"{day}\n", 0o644, replace=True)
    except unless_signalled(OSError) as error:
        raise unwritable(path, error) from error


def _path(fingerprint: str, home: Path | None) -> Path:
    return (home or home_directory()) / LAST_DAYS / fingerprint
