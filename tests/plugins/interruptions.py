"""Ctrl-C at a chosen moment, for tests of what an interruption leaves behind."""

import itertools
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType


class InterruptedAt:
    """A trace function: raises KeyboardInterrupt before the n-th byte code of `functions` in files below `folder`."""

    def __init__(self, countdown: int, functions: Collection[str], folder: str) -> None:
        self.countdown = countdown
        self._functions, self._folder = functions, folder

    def __call__(self, frame: FrameType, event: str, argument: object) -> "InterruptedAt | None":
        if frame.f_code.co_name not in self._functions or self._folder not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.countdown -= 1
            if self.countdown == 0:
                raise KeyboardInterrupt
        return self


class SignalledAt:
    """A profile function: raises a signal at the n-th place of files below `folders` where CPython may call a signal
    handler: as a function begins, and behind a call of a function written in C.

    Another one, behind a jump back to the head of a loop, is left out. What a `finally` assigns comes before any. So is
    the start of a thread in threading.py, which leaves one that never begins, as CPython is.
    """

    def __init__(self, countdown: int, *folders: str) -> None:
        self.countdown = countdown
        self.where = ""
        self._folders = folders

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or not any(each in frame.f_code.co_filename for each in self._folders):
            return
        if not _starts_a_thread(frame):
            self.countdown -= 1
            if self.countdown == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGUSR1)


def _starts_a_thread(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


def interrupted(
    work: Callable[[], object], *folders: str, error: type[BaseException] = KeyboardInterrupt, step: int = 1
) -> Iterator[int]:
    """Do `work` again and again, and have a signal handler raise `error` at each place of `SignalledAt` in turn, or at
    each `step`-th; yield the number of the place, and keep the exception meanwhile, with all that the variables of its
    frames hold, as who catches it does.

    Raises AssertionError where it does not come out of `work`.
    """

    def handler(number: int, frame: object) -> None:
        raise error("of the handler")

    profiler, former = sys.getprofile(), signal.signal(signal.SIGUSR1, handler)
    try:
        for moment in itertools.count(1, step):
            signalled = SignalledAt(moment, *folders)
            sys.setprofile(signalled)
            try:
                work()
            except error as problem:
                sys.setprofile(profiler)
                if str(problem) != "of the handler":
                    raise AssertionError(f"{signalled.where}: what the handler raised was replaced") from problem
                yield moment
            else:
                sys.setprofile(profiler)
                assert signalled.countdown > 0, f"{signalled.where}: what the handler raised was lost"
                return
            finally:
                sys.setprofile(profiler)
    finally:
        signal.signal(signal.SIGUSR1, former)
