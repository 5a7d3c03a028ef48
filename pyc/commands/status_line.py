"""What is being done now, for who waits at a terminal: one line of standard error that the next one replaces."""

import os
import shutil
import sys

import click

from pyc.commands.screen import is_terminal
from pyc.runtime.text.printable import printable


def is_quiet() -> bool:
    """Whether this thread's command was called as `pyc -q`: nothing is told of what is being done."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def show_status(text: str) -> None:
    """Show `text` in place of what was shown last; "" takes it away. Nothing under `pyc -q`, and where standard error
    is no terminal that goes back to the start of a line."""
    if is_quiet() or not is_terminal(sys.stderr) or os.environ.get("TERM") in ("dumb", ""):
        return
    width = max(shutil.get_terminal_size().columns - 1, 1)
    line = printable(text)[:width]
    sys.stderr.write(f"\r{line:<{width}}\r{line}")
    sys.stderr.flush()
