"""How many of something are done, on standard error: in one line of a terminal, else now and then."""

import sys
from time import monotonic

from pyc.commands.screen import is_terminal, tell
from pyc.commands.status_line import is_quiet, show_status


class CountProgress:
    """Says how many are done, of `total` where that is known; nothing where each appears on standard output as it is
    done (`appears`) and that is a terminal."""

    LINE_EVERY_S, STATUS_EVERY_S = 10.0, 0.2

    def __init__(self, noun: str, total: int | None = None, *, appears: bool) -> None:
        self._noun, self._total = noun, total
        self._is_silent = is_quiet() or (appears and is_terminal(sys.stdout))
        self._began_s = self._shown_s = monotonic()

    def __enter__(self) -> "CountProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._is_silent:
            show_status("")

    def reach(self, done: int) -> None:
        """Note that so many are done in all."""
        now_s, has_status = monotonic(), is_terminal(sys.stderr)
        if self._is_silent or now_s - self._shown_s < (self.STATUS_EVERY_S if has_status else self.LINE_EVERY_S):
            return
        self._shown_s = now_s
        of_total = "" if self._total is None else f" of {self._total}"
        text = f"{done}{of_total} {self._noun}, {done / (now_s - self._began_s):.3g} a second"
        if has_status:
            show_status(text)
        else:
            tell(f"pyc: {text}")
