"""Calls into libraries written in Rust, with their failures as errors of pyc.

A panic arrives in Python as pyo3_runtime.PanicException, which is a BaseException: `except Exception` lets it
through, and it ends the program with a traceback. Rust has by then written a line to standard error, which cannot be
prevented without taking standard error from the other threads; it stays.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from pyc.runtime.errors import PycError
from pyc.runtime.printable import printable

_SYSTEM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""What the system lacks is not the fault of a file."""


@contextmanager
def contained(error: type[PycError], what: str) -> Iterator[None]:
    """Raises `error`, its message `what` and the reason, for whatever the code inside raises.

    Errors of pyc pass, and so does what ends a program or a thread: Ctrl-C, exit, memory that ran out.
    """
    try:
        yield
    except (PycError, MemoryError):
        raise
    except OSError as problem:
        if problem.errno in _SYSTEM:  # while the library is imported
            raise
        raise error(f"{what}: {reason(problem)}") from problem
    except Exception as problem:  # the Rust side raises plain Exception
        raise error(f"{what}: {reason(problem)}") from problem
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        raise error(f"{what}: the tokenizers library failed: {reason(problem)}") from problem


def reason(problem: BaseException) -> str:
    """The message of an exception on one line, or its kind."""
    return printable(" ".join(str(problem).split())[:300]) or type(problem).__name__
