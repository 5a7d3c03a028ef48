"""What is being done now, for who waits at a terminal: one line of standard error that the next one replaces."""

import os
import shutil
import sys
from time import monotonic

from pyc.commands.screen import is_terminal, tell
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


class PacedLine:
    """Says from time to time how far something is: in the status line of a terminal, else in lines of a log."""

    LINE_EVERY_S, STATUS_EVERY_S = 10.0, 0.2

    def __init__(self) -> None:
        self._began_s = self._shown_s = monotonic()

    def elapsed_s(self) -> float | None:
        """Seconds since the beginning where it is time to `show` again, else None."""
        now_s = monotonic()
        pause_s = self.STATUS_EVERY_S if is_terminal(sys.stderr) else self.LINE_EVERY_S
        if is_quiet() or now_s - self._shown_s < pause_s:
            return None
        self._shown_s = now_s
        return now_s - self._began_s

    def show(self, text: str) -> None:
        """Show `text` in the place that there is."""
        if is_terminal(sys.stderr):
            show_status(text)
        else:
            tell(f"pyc: {text}")
