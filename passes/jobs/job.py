"""A job: a pure function of bytes that a build has hashed, keyed by the digest of all that decides its result.

Who does a job, when, how often and in which order changes nothing. So its result may be taken from a cache, a machine
that is lost costs the jobs it was at, and an artifact's bytes are the same for threads and for clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from pyc.backends.protocol import Backend
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.operands import sources as weight_sources
from pyc.compiler.storage import PIECE_WEIGHTS, Piece, StoredTensor
from pyc.compiler.weights import Expression, Source

JOB_WEIGHTS = 16 * PIECE_WEIGHTS
"""Weights of a job at most: some tenths of a second, and a file of 17 MB of int4 or 67 MB of bf16."""

Bytes = bytes | memoryview
BackendOf = Callable[[str], Backend]


class Job(Protocol):
    """What a worker is given. It is frozen, and can be sent."""

    @property
    def key(self) -> str:
        """The digest, in hex, of everything that decides the result."""
        ...

    @property
    def name(self) -> str:
        """The weight that it is about."""
        ...

    @property
    def sources(self) -> tuple[Source, ...]:
        """The tensors of files that it reads."""
        ...

    @property
    def counts(self) -> bool:
        """Whether the result is a part of an artifact, and a lookup of it counts among the cache's hits and misses."""
        ...

    @property
    def shared(self) -> Callable[[], object] | None:
        """Makes a value, maybe large, that it has in common with the jobs beside it; called when one is to be done."""
        ...

    def without_shared(self) -> Job:
        """Return what is sent of it, where what `shared` makes is sent on its own."""
        ...

    def pieces(self, files: SourceFiles, backend_of: BackendOf, shared: object) -> Iterable[Piece]:
        """Yield the tasks whose results, in order, are its bytes."""
        ...


class JobExecutor(Protocol):
    """Does jobs. It serves one build, and is closed by who made it."""

    def has(self, job: Job) -> bool:
        """Return whether the result of a job is known, and needs no work."""
        ...

    def digests(self, paths: Sequence[str], files: SourceFiles) -> dict[str, str]:
        """Return the BLAKE3, in hex, of every file; raises OSError and IngestError."""
        ...

    def results(
        self, jobs: Iterable[Job], files: SourceFiles, backends: Mapping[str, Backend]
    ) -> Generator[Iterator[Bytes]]:
        """Yield the bytes of each job in pieces, in order; each is taken to its end before the next.

        Raises IngestError and QuantizeError, which name the weight. No result is kept of a job whose sources changed.
        """
        ...


@dataclass(frozen=True, slots=True)
class WeightJob:
    """Indices [start, stop) of the first dimension of a weight, as `backend` stores it."""

    key: str
    name: str
    expression: Expression
    backend: str
    start: int
    stop: int

    @property
    def sources(self) -> tuple[Source, ...]:
        """The tensors that the weight is made of."""
        return weight_sources(self.expression)

    @property
    def counts(self) -> bool:
        """Yes."""
        return True

    @property
    def shared(self) -> None:
        """Nothing."""

    def without_shared(self) -> WeightJob:
        """Return the job."""
        return self

    def pieces(self, files: SourceFiles, backend_of: BackendOf, shared: object) -> Iterator[Piece]:
        """Yield the backend's tasks."""
        return backend_of(self.backend).pieces(self.expression, files, (self.start, self.stop))


def weight_jobs(
    name: str, expression: Expression, tensor: StoredTensor, backend: str, digest: str
) -> tuple[WeightJob, ...]:
    """Return the jobs of a weight, of which `digest` is that of its expression. What fits one job has it as its key."""
    indices = tensor.shape[0]
    step = max(1, JOB_WEIGHTS * indices // max(tensor.rows * tensor.columns, 1))
    if step >= indices:
        return (WeightJob(digest, name, expression, backend, 0, indices),)
    spans = [(start, min(start + step, indices)) for start in range(0, indices, step)]
    return tuple(WeightJob(_part(digest, *span), name, expression, backend, *span) for span in spans)


def _part(digest: str, start: int, stop: int) -> str:
    return blake3(f"{digest} [{start}, {stop})".encode()).hexdigest()
