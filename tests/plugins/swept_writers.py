"""Has another process sweep between the making of a file or folder and its lock, as often as told.

    times = sweep_before_locks(monkeypatch, lambda: sweep_staged(folder), 2)
    ...
    assert times == [1, 1]      # what each sweep removed
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable

import pytest


def sweep_before_locks(monkeypatch: pytest.MonkeyPatch, sweep: Callable[[], int], most: int) -> list[int]:
    """Have `sweep`, which locks as it always does, called before each of the next `most` locks that are waited for."""
    lock, removed = fcntl.flock, list[int]()

    def sweep_and_lock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and len(removed) < most:
            monkeypatch.setattr(fcntl, "flock", lock)
            removed.append(sweep())
            monkeypatch.setattr(fcntl, "flock", sweep_and_lock)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_and_lock)
    return removed
