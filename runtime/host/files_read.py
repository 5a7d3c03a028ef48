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
    """Note, in the context, which files are read, on whatever thread; this machine's policy from the start."""
    global _noted
    before, _noted = _noted, {}
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
    """What a file that is there is read as: one of `sources`, which are (path, what it is), one of those noted, or, in
    a command, standard input. By whatever name, link or hard link it is reached; None for another."""
    every = (*sources, *(_noted or {}).items())
    role = next((role for path, role in every if _is_same(found, path)), None)
    return role or ("standard input" if _noted is not None and _is_standard_input(found) else None)


def _is_standard_input(found: os.stat_result) -> bool:
    """Whether a file is what standard input has been led from; a device, as where there is none, may be anything's."""
    try:
        return stat.S_ISREG(found.st_mode) and os.path.samestat(found, os.fstat(0))
    except unless_signalled(OSError):  # it is closed
        return False


def _is_same(found: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(found, os.stat(path))
    except unless_signalled(OSError, ValueError):
        return False
