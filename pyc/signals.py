"""What signals do to the `pyc` process: the first one ends the command, and more of them change nothing.

SIGINT (Ctrl-C), SIGTERM and SIGHUP raise a KeyboardInterrupt in the main thread, which cleans up as it passes. Threads
that are in compiled code are not waited for: after GRACE_S the process removes what is unfinished
(`pyc.runtime.host.unfinished`) and ends.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
GRACE_S = 0.4
"""How long the main thread may take to clean up before the process ends without it."""
TELL_S = 0.1
"""How long the last line waits for who reads it."""
_SHOW_CURSOR = "\x1b[?25h"


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. A KeyboardInterrupt, so that what cleans up after ctrl-C cleans up after this too."""


class HungUp(KeyboardInterrupt):
    """SIGHUP arrived: the terminal went away."""


_KINDS: dict[int, tuple[type[KeyboardInterrupt], int, str]] = {
    signal.SIGINT: (KeyboardInterrupt, EXIT_INTERRUPTED, "interrupted"),
    signal.SIGTERM: (Terminated, EXIT_TERMINATED, "terminated"),
    signal.SIGHUP: (HungUp, EXIT_HUNG_UP, "hung up"),
}


class _State:
    """Of this process: whether it is all ours, and whether it is being ended."""

    owner = 0
    is_own_process = False
    is_ending = False
    is_cleaned_up = False
    count = 0


_leaving = _thread.allocate_lock()


def take_over() -> None:
    """Make this process pyc's own: from now on a signal ends it, without a traceback, at any time."""
    _State.owner = os.getpid()
    _State.is_own_process = True
    _State.is_ending = _State.is_cleaned_up = False
    _install()


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Have signals raise KeyboardInterrupt or a subclass inside. Does nothing in another thread than the main one."""
    if _State.is_own_process:
        yield
        return
    if _thread.get_ident() != _main_thread():
        yield  # the program that embeds us owns the signals
        return
    _State.owner = os.getpid()
    _State.is_ending = _State.is_cleaned_up = False
    former = _install()
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def resume() -> None:
    """Go on after a KeyboardInterrupt that ended a part of a command only, such as one answer of a conversation."""
    _State.is_ending = False
    if unfinished := sys.modules.get("pyc.runtime.host.unfinished"):
        unfinished.resume()


def settle() -> None:
    """Say that the main thread has cleaned up and is about to leave; signals change nothing from now on."""
    _State.is_ending = _State.is_cleaned_up = True


def message_and_code(error: KeyboardInterrupt) -> tuple[str, int]:
    """Return the line to print for a signal that ended a command, and the exit code."""
    for kind, code, word in _KINDS.values():
        if type(error) is kind:
            return f"pyc: {word}", code
    return "pyc: interrupted", EXIT_INTERRUPTED


def leave(code: int, message: str = "") -> NoReturn:
    """Remove what is unfinished, print `message` and end the process. Of several threads the first does it."""
    _State.is_ending = True
    _leaving.acquire()
    if unfinished := sys.modules.get("pyc.runtime.host.unfinished"):
        unfinished.drop_all()
    if message and may_tell():
        with contextlib.suppress(OSError):
            cursor = _SHOW_CURSOR if os.isatty(2) else ""
            os.write(2, f"{cursor}{message}\n".encode())
    os._exit(code)


def end_unheard(number: int) -> None:
    """End the process by a signal that ends every command and that the main thread has not heard of, in a library that
    goes on where it interrupts a call. For a thread that heard of it; does nothing where the main thread has, too."""
    if number not in (signal.SIGTERM, signal.SIGHUP) or not _State.is_own_process or _State.is_ending:
        return
    if os.getpid() == _State.owner and signal.getsignal(number) is _handle:
        _, code, word = _KINDS[number]
        leave(code, f"pyc: {word}")


def may_tell() -> bool:
    """Whether a last line does not hold the end of this process up: a terminal that Ctrl-S stopped and a pipe that is
    full take none."""
    if not _State.is_own_process:
        return True
    try:
        return bool(select.select([], [2], [], TELL_S)[1])
    except (OSError, ValueError):  # closed
        return False


def _install() -> dict[int, signal._HANDLER]:
    """Install the handler; returns the former ones. What a parent ignores (nohup, a job in the background) stays so."""
    former: dict[int, signal._HANDLER] = {}
    for number in _KINDS:
        before = signal.getsignal(number)
        if before is not signal.SIG_IGN or number == signal.SIGTERM:
            former[number] = before
            signal.signal(number, _handle)
    return former


def _handle(number: int, frame: FrameType | None) -> None:
    kind, code, word = _KINDS[number]
    if os.getpid() != _State.owner:  # a forked worker: it has nothing to clean up and nobody to tell
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    if _State.is_ending:
        return
    _State.is_ending = True
    if _State.is_own_process:
        _State.count += 1
        with contextlib.suppress(RuntimeError):  # no thread to be had: the main thread cleans up in its own time
            _thread.start_new_thread(_insist, (_State.count, code, f"pyc: {word}"))
    raise kind


def _insist(count: int, code: int, message: str) -> None:
    """End the process unless the main thread does, or goes on after all."""
    if unfinished := sys.modules.get("pyc.runtime.host.unfinished"):
        unfinished.kill_programs()  # who waits for a compiler waits no longer; what is done as a whole is waited for
    deadline_s = time.monotonic() + GRACE_S
    while time.monotonic() < deadline_s:
        if count != _State.count or not _State.is_ending or _State.is_cleaned_up:
            return
        time.sleep(0.01)
    leave(code, message)


def _main_thread() -> int | None:
    import threading

    return threading.main_thread().ident
