"""What counts no more, whoever trusts it: keys that leaked, artifacts that should not have been released.

    <home>/revoked/<fingerprint>    of a key: 16 hex digits
    <home>/revoked/<digest>         of an artifact: the SHA-256 of its header, 64 hex digits without a prefix

Each file is a line: the day of the revocation, and the reason. That it is there is enough: one that is empty or cannot
be read revokes, too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from pyc.runtime.artifact.trust.keys import read_small_text, today_utc
from pyc.runtime.artifact.trust.store_lock import changing_store
from pyc.runtime.artifact.trust.subjects import listed_subject, shown_subject
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import find_home_directory, home_directory, write_whole
from pyc.runtime.host.private_files import require_private, require_private_folder, unreadable, unwritable
from pyc.runtime.host.signal_handlers import unless_signalled

MAX_REASON_CHARACTERS = 200

_subject = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Revocation:
    """`subject` is a key's fingerprint or an artifact's digest without prefix; `day` is empty where the file does not
    say."""

    subject: str
    day: str = ""
    reason: str = ""

    @property
    def shown(self) -> str:
        """The subject as `pyc trust restore` takes it."""
        return shown_subject(self.subject)

    def __str__(self) -> str:
        """As the end of a sentence: "on 2026-01-31: it leaked"."""
        return (f"on {self.day}" if self.day else "here") + (f": {self.reason}" if self.reason else "")


def clean_reason(text: str) -> str:
    """The reason as it is stored: a line of printable characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()[:MAX_REASON_CHARACTERS]


def find_revocation(subject: str, home: Path | None = None) -> Revocation | None:
    """What says that this key or artifact was revoked, if anything does. Raises ArtifactError where others may write
    to the folder, and where this user may not look into it."""
    if home is None and find_home_directory() is None:
        return None
    path = _folder(home) / subject
    if _is_there(path):
        return _read(path)
    require_folder(home)
    return None


def revoke(subject: str, reason: str = "", home: Path | None = None) -> Revocation:
    """Revoke a key or an artifact; the first revocation stands. Raises ArtifactError."""
    path = _folder(home) / listed_subject(subject)
    reason = clean_reason(reason)
    require_folder(home)
    try:
        with changing_store(home):
            write_whole(path, f"{today_utc()} {reason}".rstrip() + "\n", 0o644, replace=False)
    except unless_signalled(OSError) as error:
        raise unwritable(path, error) from error
    return _read(path)


def restore(subject: str, home: Path | None = None) -> Revocation:
    """Undo a revocation, and return it. Raises ArtifactError where there is none."""
    path = _folder(home) / listed_subject(subject)
    absent = ArtifactError(f"{shown_subject(subject)} was not revoked here; see `pyc trust list`")
    if not _is_there(path):
        raise absent
    with changing_store(home):
        if not _is_there(path):  # another process was faster
            raise absent
        found = _read(path)
        try:
            path.unlink()
        except unless_signalled(OSError) as error:
            raise ArtifactError(f"{path}: cannot be removed: {error.strerror}") from error
    return found


def list_revoked(home: Path | None = None) -> tuple[Revocation, ...]:
    """All revocations, by subject. Raises ArtifactError."""
    folder = _folder(home)
    try:
        names = sorted(name for name in os.listdir(folder) if _subject.fullmatch(name))
    except FileNotFoundError:
        return ()
    except unless_signalled(OSError) as error:
        raise unreadable(folder, error, "what was revoked") from error
    return tuple(_read(folder / name) for name in names)


def require_folder(home: Path | None = None) -> None:
    """Raise ArtifactError where what stands in the folder would not count: others may write to it."""
    require_private_folder(_folder(home), "restore keys")


def _folder(home: Path | None) -> Path:
    return (home or home_directory()) / "revoked"


def _is_there(path: Path) -> bool:
    """Whether there is such a file. Raises ArtifactError where that cannot be told: it may have been revoked."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except unless_signalled(OSError) as error:
        raise unreadable(path.parent, error, "what was revoked") from error
    return True


def _read(path: Path) -> Revocation:
    require_private(path, "restore keys")
    try:
        day, _, reason = read_small_text(path).partition(" ")
    except ArtifactError:
        return Revocation(path.name)
    return Revocation(path.name, clean_reason(day), clean_reason(reason))
