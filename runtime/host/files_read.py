"""The files that a command has read, which no file that it writes takes the place of.

    with files_read():                          # around a command of the command line
        note_file(path, "whom to trust")        # by what reads sources, keys, policies and signatures

`OutputFile.check`, which is called before the work and once more just before a file is put in its place, refuses each
of them, whatever the command itself lists. Outside of `files_read`, as in a program that loads one artifact and builds
the next under its name, nothing is noted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from pyc.runtime.host.signal_handlers import unless_signalled

POLICY_VARIABLE = "PYC_TRUST_POLICY"
"""Names the file of this machine's policy, which any command may read."""

_noted: dict[str, str] | None = None


@contextlib.contextmanager
def files_read() -> Iterator[None]:
    """Note, in the context, which files are read, on whatever thread; this machine's policy and the file that standard
    input is from the start."""
    global _noted
    before, _noted = _noted, {}
    with contextlib.suppress(OSError):  # there is none
        if stat.S_ISREG(os.fstat(0).st_mode):
            note_file("/dev/stdin", "standard input")
    if policy := os.environ.get(POLICY_VARIABLE):
        note_file(policy, "this machine's policy")
    try:
        yield
    finally:
        _noted = before


def note_file(path: str | os.PathLike[str], role: str) -> None:
    """Note that a file is read; `role` says what it is, as in "is the policy, which is read here"."""
    noted = _noted
    if noted is not None:
        with contextlib.suppress(OSError):  # the current folder is gone
            # Joined and no more: `..` behind a link leads where that leads.
            noted.setdefault(os.fspath(path) if os.path.isabs(path) else os.path.join(os.getcwd(), path), role)


def role_of(found: os.stat_result, sources: Iterable[tuple[str, str]] = ()) -> str | None:
    """What a file that is there is read as: one of `sources`, which are (path, what it is), or of those noted. By
    whatever name, link or hard link it is reached; None for another."""
    every = (*sources, *(_noted or {}).items())
    return next((role for path, role in every if _is_same(found, path)), None)


def _is_same(found: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(found, os.stat(path))
    except unless_signalled(OSError, ValueError):
        return False
