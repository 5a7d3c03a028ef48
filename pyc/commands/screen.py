"""Where text is shown: what a model says must neither take over a terminal nor fail on one that lacks its letters."""

import os
import re
import sys
from contextlib import suppress
from typing import TextIO

from pyc.runtime.text.json_text import json_text
from pyc.runtime.text.printable import printable

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
# Controls but newline and tab; overrides of the writing direction, which make a text read as another.
_TAKES_OVER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

SPACES_AND_JOINERS = "\u200c\u200d\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""Zero-width joiners, which many scripts write words with, and the spaces (Zs) besides ASCII's."""


def escape_controls(text: str) -> str:
    """`text` with each control character as Python writes it: ESC becomes \\x1b. Newline and tab stay."""
    return _TAKES_OVER.sub(lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody looks at the stream; not when it is closed."""
    return stream is not None and not stream.closed and stream.isatty()


class Screen:
    """Standard output. Text goes out as it is unless a terminal shows it."""

    def __init__(self) -> None:
        self.is_terminal = is_terminal(sys.stdout)
        self._has_colours = (
            self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
        )

    def show(self, text: str, *, dim: bool = False) -> None:
        """Print at once, without a newline."""
        if not text:
            return
        shown = _spelt(escape_controls(text) if self.is_terminal else text, sys.stdout)
        if dim and self._has_colours:
            shown = f"{_DIM}{shown}{_PLAIN}"
        print(shown, end="", flush=True)


def say(line: str) -> None:
    """Print a line of what a command found, in which names of files and words of others have their control characters
    escaped, and no others: a path that is printed is that of the file. Raises OSError."""
    print(_spelt(printable(line, keep=SPACES_AND_JOINERS), sys.stdout), flush=True)


def say_json(document: object, *, indent: int | None = 2) -> None:
    """Print what --json is asked for, in ASCII, as any parser reads it and any terminal shows it. Raises OSError."""
    print(json_text(document, indent=indent), flush=True)


def tell(text: str) -> None:
    """Print a line for the reader, not for a program, to standard error. When that takes none, nothing else changes."""
    if sys.stderr is None:  # of a program that has none: print would take standard output
        return
    line = escape_controls(text) if is_terminal(sys.stderr) else text
    with suppress(OSError):
        print(_spelt(line, sys.stderr), file=sys.stderr, flush=True)


def _spelt(text: str, stream: TextIO | None) -> str:
    """`text` with what the stream cannot encode as Python writes it."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
