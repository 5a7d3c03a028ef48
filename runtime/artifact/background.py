"""Verification on threads, of chunks that lie in a file here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from pyc.runtime.artifact.chunks import Wanted

MAX_WORKERS = 4

Drain = Callable[[Iterator[Wanted]], None]
"""Verifies what is left of a queue, which other threads take from, too."""


class Ahead:
    """Verification in the background."""

    def __init__(self, drain: Drain, jobs: list[Wanted]) -> None:
        self._queue = iter(jobs)
        self._count = hashing_threads()
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="pyc-verify")
        self._workers = begin(self._pool, self._count, drain, self._queue)

    def wait(self, drain: Drain) -> None:
        """Return when all is verified. Raises ArtifactError. `drain` is not kept: it holds the artifact."""
        try:
            if len(self._workers) < self._count:
                drain(self._queue)
            for worker in self._workers:
                worker.result()
        finally:
            self.stop()

    def stop(self) -> None:
        """Begin nothing more and wait for what has begun. Safe to call again."""
        empty(self._queue)
        self._pool.shutdown()


def hashing_threads() -> int:
    """How many threads hash."""
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))


def begin(
    pool: ThreadPoolExecutor, count: int, drain: Drain, queue: Iterator[Wanted]
) -> list[Future[None]]:
    """Has `count` threads do the jobs: fewer, or none, where the system has no more or the interpreter is ending."""
    begun: list[Future[None]] = []
    with contextlib.suppress(RuntimeError):
        for _ in range(count):
            begun.append(pool.submit(drain, queue))
    return begun


def empty(queue: Iterator[Wanted]) -> None:
    """After an error or an interrupt, leaves nothing for other workers to begin."""
    for _ in queue:
        pass
