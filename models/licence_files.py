"""The licence of a model: files that its checkpoint has, which the artifact carries under their own names."""

from __future__ import annotations

import re

from pyc.models.files import Directory

_FILE = re.compile(
    r"(?:LICEN[CS]E|NOTICE|COPYING|(?:ACCEPTABLE_)?USE_POLICY)(?:[-_.][A-Za-z0-9_-]{1,40})?(?:\.(?:md|txt|rst))?",
    re.IGNORECASE,
)
MOST_FILES = 8


def is_licence(name: str) -> bool:
    """Whether a file of this name says what may be done with a model."""
    return _FILE.fullmatch(name) is not None


def read_licence_files(directory: Directory) -> tuple[tuple[str, bytes], ...]:
    """Return (name, bytes) of the licence files directly in the directory, sorted; of more than MOST_FILES the first.

    What is no regular file is passed over. Raises IngestError for one that is too large or cannot be read.
    """
    names = [name for name in directory.names() if is_licence(name) and (directory.root / name).is_file()]
    return tuple((name, data) for name in names[:MOST_FILES] if (data := directory.read(name)) is not None)
