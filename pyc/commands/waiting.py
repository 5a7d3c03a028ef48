"""Signals while the main thread waits for a line to be typed.

Python runs the handler of a signal when the signal interrupts a system call of the main thread, or between two byte
codes. A signal that arrives in the moment before readline waits does neither: it would be noticed at the next key.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pyc.signals import end_unheard

NUDGES_S = (0.02, 0.2, 1.0)
_NUDGE = signal.SIGURG  # ignored by default, and of no use to a program without sockets


def _nothing(number: int, frame: FrameType | None) -> None:
    """Stands in for the default, which would not interrupt a call."""


@contextmanager
def noticing_signals() -> Iterator[None]:
    """Has every signal noticed soon: a thread that hears of it first interrupts the main thread a few times.

    In the middle of a paste readline goes on with it whatever interrupts it. SIGTERM and SIGHUP then end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not ours
        return
    main = threading.get_ident()
    over = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def nudge() -> None:
        while number := os.read(reading, 1):
            if number[0] == _NUDGE:
                continue
            for pause_s in NUDGES_S:
                if over.wait(pause_s):
                    return
                signal.pthread_kill(main, _NUDGE)
            end_unheard(number[0])

    thread = threading.Thread(target=nudge, name="pyc signals", daemon=True)
    former_handler = signal.signal(_NUDGE, _nothing)
    former_descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        thread.start()
        yield
    finally:
        signal.set_wakeup_fd(former_descriptor)
        over.set()
        os.close(writing)
        if thread.ident is not None:
            thread.join()
        os.close(reading)
        signal.signal(_NUDGE, former_handler)
