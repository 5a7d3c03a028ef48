"""Calls into libraries written in Rust, with their failures as errors of pyc.

A panic arrives in Python as pyo3_runtime.PanicException, which is a BaseException: `except Exception` lets it
through, and it ends the program with a traceback. Rust has by then written a line to standard error, which cannot be
prevented without taking standard error from the other threads; it stays.
"""

from __future__ import annotations

import errno
from types import TracebackType

from pyc.runtime.errors import PycError
from pyc.runtime.host.signal_handlers import comes_from_a_signal_handler
from pyc.runtime.text.printable import printable

_SYSTEM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""What the system lacks is not the fault of a file."""


class _Containment:
    """What `contained` returns: a class, as a generator is slower, and each token is decoded in one."""

    __slots__ = ("_error", "_what")

    def __init__(self, error: type[PycError], what: str) -> None:
        self._error, self._what = error, what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is None or isinstance(problem, PycError | MemoryError):
            return
        if isinstance(problem, RecursionError):
            return  # of who called: Rust code has none
        if isinstance(problem, ImportError) or (isinstance(problem, OSError) and problem.errno in _SYSTEM):
            return  # while the library is imported
        if comes_from_a_signal_handler(problem):
            return
        if isinstance(problem, Exception):  # the Rust side raises plain Exception
            raise self._error(f"{self._what}: {reason(problem)}") from problem
        if type(problem).__name__ == "PanicException":
            raise self._error(f"{self._what}: the tokenizers library failed: {reason(problem)}") from problem


def contained(error: type[PycError], what: str) -> _Containment:
    """Return a context that raises `error`, its message `what` and the reason, for whatever the code inside raises.

    Errors of pyc pass, and so does what ends a program or a thread: Ctrl-C, exit, memory that ran out, the limit of
    recursion, a library that cannot be imported, and whatever a signal handler of the program raises, a time limit for
    one.
    """
    return _Containment(error, what)


def reason(problem: BaseException) -> str:
    """The message of an exception on one line, or its kind."""
    return printable(" ".join(str(problem).split())[:300]) or type(problem).__name__
