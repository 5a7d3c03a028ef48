"""Calls of object stores through obstore, which end at a signal, and when a store stalls.

A request has obstore's limits: CONNECT_S to connect, REQUEST_S to its last byte. The store's own variables set others,
such as AWS_TIMEOUT=60s and AWS_CONNECT_TIMEOUT. One that runs into a limit is made again, as RETRIES says. A call, with
all its requests, has `limit_s` from here: nothing that a store does, or a library before it asks, takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from pyc.runtime.host.interruptible import interruptible
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.connection import StalledError
from pyc.runtime.sources.places import without_credentials

T = TypeVar("T")

CONNECT_S = 5
REQUEST_S = 30
"""obstore's defaults, which are not handed over: with options for its client it leaves the store's variables unread."""

RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
"""How often a request that failed is made again, and how long after the first."""

PATIENCE_S = 120.0
LEAST_BYTES_PER_S = 128 << 10
"""A call's time: so long, and so much longer for each byte that it moves."""

REMEDY = "check the network and the store's endpoint, and try again"
_TIMED_OUT = ("TimedOut", "kind: Timeout")
"""What obstore's errors, which are of no class of their own then, have in the lines behind the first."""


def limit_s(size_bytes: int = 0) -> float:
    """Return how long a call may take that moves so many bytes."""
    return PATIENCE_S + size_bytes / LEAST_BYTES_PER_S


def answered(ask: Callable[[], T], what: str, size_bytes: int = 0) -> T:
    """Return what `ask` returns, or raise what it raises: obstore's errors.

    `what` says what is waited for, of `size_bytes`; StalledError, which has it in its message, where that takes too
    long. An answer that comes later is for nobody.
    """
    limit, started_s = limit_s(size_bytes), time.monotonic()
    try:
        return interruptible(ask, limit)
    except unless_signalled(TimeoutError) as error:
        raise StalledError(f"stalled: waited {limit:.0f} s for {what}; {REMEDY}") from error
    except unless_signalled(Exception) as error:
        if not any(sign in str(error) for sign in _TIMED_OUT):
            raise
        waited_s = time.monotonic() - started_s
        raise StalledError(f"stalled: waited {waited_s:.0f} s, in all tries, for {what}; {REMEDY}") from error


def reason_of(error: Exception) -> str:
    """Return the first line of what obstore says, which has a debugger's view behind it, without credentials."""
    return without_credentials(str(error).strip().partition("\n")[0][:300])
