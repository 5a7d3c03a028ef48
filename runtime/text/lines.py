"""Lines of texts that users give: they end with \\n or \\r\\n.

What else Unicode, and `str.splitlines`, calls a line end is a character of a text like others: U+2028, form feed, a
file separator, \\r alone.
"""

from __future__ import annotations


def plain_line_ends(text: str) -> str:
    """Return the text with \\n in place of \\r\\n."""
    return text.replace("\r\n", "\n")


def without_line_end(line: str) -> str:
    """Return a line of a file, which has its end or is the last, without that end."""
    return line.removesuffix("\n").removesuffix("\r")


def lines_of(text: str) -> list[str]:
    """Return the lines of a whole text without their ends; what is behind the last end is a line unless it is empty."""
    lines = [without_line_end(line) for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]
