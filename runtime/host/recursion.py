"""Whose fault a RecursionError is: a document's that is nested deeply, or a caller's who is at the limit already."""

from __future__ import annotations

import sys


def refuse_deep_caller(problem: BaseException) -> None:
    """Raise `problem` once more where it says that the limit of recursion was met, and the caller had taken more than
    half of that before: a document that is fine would be blamed for it."""
    if not isinstance(problem, RecursionError):
        return
    left, frame = sys.getrecursionlimit() // 2, sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        left -= 1
        if left < 0:
            raise problem
