"""How many of something are done, on standard error: in one line of a terminal, else now and then."""

import sys

from pyc.commands.screen import is_terminal
from pyc.commands.status_line import PacedLine, show_status


class CountProgress(PacedLine):
    """Says how many are done, of `total` where that is known; nothing where each appears on standard output as it is
    done (`appears`) and that is a terminal."""

    def __init__(self, noun: str, total: int | None = None, *, appears: bool) -> None:
        super().__init__()
        self._noun, self._total = noun, total
        self._is_silent = appears and is_terminal(sys.stdout)

    def __enter__(self) -> "CountProgress":
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._is_silent:
            show_status("")

    def reach(self, done: int) -> None:
        """Note that so many are done in all."""
        if self._is_silent or (elapsed_s := self.elapsed_s()) is None:
            return
        of_total = "" if self._total is None else f" of {self._total}"
        self.show(f"{done}{of_total} {self._noun}, {done / elapsed_s:.3g} a second")
