"""Jobs done by threads of this process, piece by piece, in order and in bounded memory.

numpy and compiled packers release the interpreter lock in their loops, so threads of one process are enough for one
machine. At most two pieces a worker are in flight, of one job or of several: workers do not wait at a job's end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from pyc.backends.protocol import Backend
from pyc.compiler.awaited import Awaited, Workers
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.passes.jobs.job import Bytes, Job
from pyc.runtime.errors import QuantizeError


class LocalJobs:
    """Does jobs with `workers` threads; a context manager that ends them. Results are kept in `cache`."""

    def __init__(self, workers: int, cache: Cache, pool: Executor | None = None) -> None:
        """`pool`, with that many threads, in place of threads of its own."""
        self._pool = pool or Workers(workers, "pyc-emit")
        self._ahead, self._cache = 2 * workers, cache

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def has(self, job: Job) -> bool:
        """Return whether the cache has the result of a job."""
        return self._cache.has(job.key)

    def digests(self, paths: Sequence[str], files: SourceFiles) -> dict[str, str]:
        """Return the BLAKE3 of every file, one on each thread."""
        hashed = [Awaited(self._pool, partial(files.digest, path)) for path in paths]
        return {path: awaited.result() for path, awaited in zip(paths, hashed, strict=True)}

    def results(
        self, jobs: Iterable[Job], files: SourceFiles, backends: Mapping[str, Backend]
    ) -> Generator[Iterator[Bytes]]:
        """Yield the bytes of each job, in order; see `JobExecutor.results`."""
        window = _Window(self._begun(jobs, files, backends.__getitem__), self._ahead)
        try:
            while (begun := window.first()) is not None:
                if isinstance(begun, _Found):
                    window.take()
                    yield begun.pieces
                else:
                    yield self._cache.kept(begun.job.key, self._computed(begun.job, window, files))
        finally:
            window.cancel()

    def _begun(self, jobs: Iterable[Job], files: SourceFiles, backend_of: Callable[[str], Backend]) -> Iterator[_Begun]:
        for job in jobs:
            found = self._cache.opened(job.key, counts=job.counts)
            if found is not None:
                yield _Found(found)
                continue
            for task in job.pieces(files, backend_of, None if job.shared is None else job.shared()):
                yield _Piece(job, Awaited(self._pool, task))

    def _computed(self, job: Job, window: _Window, files: SourceFiles) -> Iterator[memoryview]:
        while isinstance(begun := window.first(), _Piece) and begun.job is job:
            window.take()
            try:
                yield begun.awaited.result()
            except QuantizeError as error:
                raise QuantizeError(f"quantize: {job.name}: {error}") from error
        files.check(dict.fromkeys(source.path for source in job.sources))


@dataclass(frozen=True, slots=True)
class _Found:
    """A job whose result the cache has."""

    pieces: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class _Piece:
    job: Job
    awaited: Awaited[memoryview]


_Begun = _Found | _Piece


class _Window:
    """What is begun and not yet taken: at most `size` pieces."""

    def __init__(self, begun: Iterator[_Begun], size: int) -> None:
        self._begun, self._size = begun, size
        self._waiting: deque[_Begun] = deque()

    def first(self) -> _Begun | None:
        """Return what comes next, None behind the last."""
        while len(self._waiting) < self._size and (begun := next(self._begun, None)) is not None:
            self._waiting.append(begun)
        return self._waiting[0] if self._waiting else None

    def take(self) -> None:
        """Drop what comes next."""
        self._waiting.popleft()

    def cancel(self) -> None:
        """Have nothing more begun."""
        for begun in self._waiting:
            if isinstance(begun, _Piece):
                begun.awaited.cancel()
