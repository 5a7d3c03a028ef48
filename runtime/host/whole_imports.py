"""Imports that no signal handler ends half way.

numpy and others load once in a process: where Ctrl-C ends their import, the next one fails for good, or ends the
process by SIGSEGV.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has signal alone
import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

# `_signal`, since the functions of `signal` catch a ValueError, be it that of a handler which runs in them.


def import_whole(name: str) -> None:
    """Import a module that is not there yet."""
    if name not in sys.modules:
        with whole_imports():
            importlib.import_module(name)


@contextlib.contextmanager
def whole_imports() -> Iterator[None]:
    """Have the handlers of signals that arrive inside run at the end of the block. The first exception is raised."""
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    former: dict[int, signal._HANDLER] = {}
    try:
        if threading.current_thread() is threading.main_thread():  # the one that runs them
            for number in map(int, _signal.valid_signals()):
                handler = _signal.getsignal(number)
                if callable(handler):
                    former[number] = handler
                    _signal.signal(number, note)
        yield
    finally:
        _restore(former, arrived)


def _restore(former: dict[int, signal._HANDLER], arrived: list[int]) -> None:
    """Install the handlers again, each whatever those that are there again raise, and run those of `arrived`."""
    problem: BaseException | None = None
    left = dict(former)
    while left or arrived:
        try:
            while left:
                number = next(iter(left))
                _signal.signal(number, left[number])
                del left[number]
            while arrived:
                handler = former[number := arrived.pop(0)]
                if callable(handler):
                    handler(number, sys._getframe())
        except BaseException as error:  # noqa: BLE001 -- raised below
            problem = problem or error
    if problem is not None:
        raise problem
