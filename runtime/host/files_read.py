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
from collections.abc import Iterator

_noted: dict[str, str] | None = None


@contextlib.contextmanager
def files_read() -> Iterator[None]:
    """Note, in the context, which files are read, on whatever thread."""
    global _noted
    before, _noted = _noted, {}
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


def noted_files() -> tuple[tuple[str, str], ...]:
    """The files that were noted, and what they are."""
    return tuple((_noted or {}).items())
