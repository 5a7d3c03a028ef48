"""Text of files in messages: never more of it than a line, and nothing that a terminal would obey."""

from __future__ import annotations

from pyc.runtime.text.printable import printable

MAX_SHOWN = 100


def shown(text: str, most: int = MAX_SHOWN) -> str:
    """Return text of a file as messages print it: cut, and what would move the cursor or hide is escaped."""
    cut = text if len(text) <= most else text[:most] + "..."
    return printable(cut)


def quoted(text: str | None, most: int = MAX_SHOWN) -> str:
    """Return the same between quotes; None as such."""
    return repr(text if text is None or len(text) <= most else text[:most] + "...")
