"""Imports that no signal handler ends half way.

numpy and others load once in a process: where Ctrl-C ends their import, the next one fails for good, or ends the
process by SIGSEGV.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def whole_imports() -> Iterator[None]:
    """Have the handlers of signals that arrive inside run at the end of the block."""
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    former: dict[int, signal._HANDLER] = {}
    try:
        if threading.current_thread() is threading.main_thread():  # the one that runs them
            for each in map(int, signal.valid_signals()):
                handler = signal.getsignal(each)
                if callable(handler):
                    former[each] = handler
                    with contextlib.suppress(ValueError):  # an interpreter beside the first has none
                        signal.signal(each, note)
        yield
    finally:
        for number, handler in former.items():
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)
        for each in arrived:
            handler = former[each]
            if callable(handler):
                handler(each, sys._getframe())
