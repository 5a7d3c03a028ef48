"""What is being done now, for who waits at a terminal: one line of standard error that the next one replaces."""

import os
import shutil
import sys

from pyc.commands.screen import is_terminal
from pyc.runtime.text.printable import printable

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Have this process say nothing of what is being done, or say it again: `pyc -q`."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether nothing is to be said of what is being done, on any thread."""
    return _quiet


def show_status(text: str) -> None:
    """Show `text` in place of what was shown last; "" takes it away. Nothing under `pyc -q`, and where standard error
    is no terminal that goes back to the start of a line."""
    if is_quiet() or not is_terminal(sys.stderr) or os.environ.get("TERM") in ("dumb", ""):
        return
    width = max(shutil.get_terminal_size().columns - 1, 1)
    line = printable(text)[:width]
    sys.stderr.write(f"\r{line:<{width}}\r{line}")
    sys.stderr.flush()
