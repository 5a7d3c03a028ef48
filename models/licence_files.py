"""The licence of a model: files that its checkpoint has, which the artifact carries under their own names."""

from __future__ import annotations

import re

from pyc.models.files import Directory

_FILE = re.compile(
    r"(?:LICEN[CS]E|NOTICE|COPYING|(?:ACCEPTABLE_)?USE_POLICY)(?:[-_.][A-Za-z0-9_-]{1,40})?(?:\.(?:md|txt|rst))?",
    re.IGNORECASE,
)
MOST_FILES = 64


def is_licence(name: str) -> bool:
    """Whether a file of this name says what may be done with a model."""
    return _FILE.fullmatch(name) is not None


def read_licence_files(directory: Directory) -> tuple[tuple[str, bytes], ...]:
    """Return (name, bytes) of the licence files directly in the directory, sorted. Folders are passed over.

    Raises IngestError for one that is too large or cannot be read, for a link that leads nowhere, and for more than
    MOST_FILES: none is left out without a word.
    """
    names = [name for name in directory.names() if is_licence(name)]
    for name in names:
        path = directory.root / name
        if path.is_symlink() and not path.exists():
            raise directory.error(f"{directory.label}: {name} is a link that leads nowhere; mend it, or remove it")
    names = [name for name in names if (directory.root / name).is_file()]
    if len(names) > MOST_FILES:
        raise directory.error(
            f"{directory.label}: it has {len(names)} licence files, expected at most {MOST_FILES}; put them into one"
        )
    return tuple((name, data) for name in names if (data := directory.read(name)) is not None)
