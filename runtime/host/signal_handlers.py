"""Exceptions of the program's signal handlers, told from those of the code that they interrupt.

A handler runs in the middle of other code, and what it raises, as a rule for a time limit, goes up through that. A
TimeoutError is an OSError: code that waits for a server or a disk would take it for a fault of those, and try again.
"""

from __future__ import annotations

import signal
import sys
from types import CodeType
from typing import TypeVar

Kind = TypeVar("Kind", bound=BaseException)


def unless_signalled(*kinds: type[Kind]) -> tuple[type[Kind], ...]:
    """Return `kinds`, or none where a signal handler raised what is being handled. It stands behind `except`:

        except unless_signalled(OSError) as error:

    Where one waits or works for long, that is: elsewhere the chance that a signal comes is none.
    """
    problem = sys.exception()
    return () if isinstance(problem, kinds) and comes_from_a_signal_handler(problem) else kinds


def comes_from_a_signal_handler(problem: BaseException) -> bool:
    """Whether a signal handler raised `problem` while other code ran, which has nothing to do with it."""
    passed: list[CodeType] = []
    trace = problem.__traceback__
    while trace is not None:
        passed.append(trace.tb_frame.f_code)
        trace = trace.tb_next
    if len(passed) < 2:  # the frame that handles it, and no other
        return False
    return not {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}.isdisjoint(passed)


def _code_of(handler: object) -> CodeType | None:
    """The code of a handler that is written in Python: a function, a method, a partial or an object to call."""
    function = getattr(handler, "func", handler)
    call = getattr(type(function), "__call__", None)  # noqa: B004 -- not whether it can be called: with what
    code = getattr(function, "__code__", None) or getattr(call, "__code__", None)
    return code if isinstance(code, CodeType) else None
