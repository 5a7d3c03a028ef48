"""Calls of libraries that keep a thread until they are done, where signals should still end the program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_TURN_S = 0.1


def interruptible(call: Callable[[], T], limit_s: float | None = None) -> T:
    """Return what `call` returns, or raise what it raises: in a thread of its own, while this one takes signals.

    Raises TimeoutError after `limit_s`. Then, and after an interrupt, the thread goes on until the call is done; it
    does not keep the process.
    """
    done, outcome = threading.Lock(), _Outcome()
    done.acquire()  # until the call is done; an Event would be left locked by a signal handler that raises

    def run() -> None:
        try:
            outcome.value = call()
        except BaseException as error:  # noqa: BLE001  # raised where the call was made
            outcome.error = error
        finally:
            done.release()

    threading.Thread(target=run, name="pyc-interruptible", daemon=True).start()
    end_s = None if limit_s is None else time.monotonic() + limit_s
    while not done.acquire(timeout=_TURN_S if end_s is None else max(0.0, min(_TURN_S, end_s - time.monotonic()))):
        if end_s is not None and time.monotonic() >= end_s:
            raise TimeoutError(f"a call took longer than {limit_s} s")
    if outcome.error is not None:
        raise outcome.error
    return outcome.value  # type: ignore[no-any-return]  # what `call` returned


class _Outcome:
    value: Any = None
    error: BaseException | None = None
