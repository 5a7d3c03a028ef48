"""Jobs done by the machines of a Ray cluster: this process sends what is to be done, and reads results from a cache.

Results never come through Ray: a worker writes them to a cache that all machines see, and answers with a verdict. So
this process has as little memory as with threads, a worker that is killed costs the job it was at (Ray gives that to
another), and a build that ends early goes on from the cache.

The connection is Ray's client protocol: this process takes no part in the cluster, keeps its own signals, and learns
by an exception that the cluster is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from pyc.backends.protocol import Backend
from pyc.compiler.files.blocks import BlockDigests, block_digests
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.passes.jobs.assignment import Assignment, KnownFile, Outcome, Site, versions
from pyc.passes.jobs.job import Bytes, Job
from pyc.passes.jobs.local import LocalJobs
from pyc.passes.jobs.ray_connection import RayConnection
from pyc.passes.jobs.result_store import open_store
from pyc.runtime import errors
from pyc.runtime.errors import ClusterError, IngestError, PycError
from pyc.runtime.host.machine import allowed_cpus

logger = logging.getLogger(__name__)

LEAST_BYTES = 1 << 20
"""Jobs that read less are done here: sending them takes longer."""
MOST_READ_BYTES = 64 << 20
"""Files of which this process has read more are hashed here: it would have to read that again to compare."""
AHEAD = 2
"""Jobs that each processor of the cluster has waiting or under way."""
VISIBLE_S = 20.0
"""How long an entry that a worker has published may take to be seen here: file systems of networks remember absence."""
POLL_S = 1.0
PATIENCE_S = 30.0
"""How long nothing may be heard of any job before the cluster is asked whether it has workers left."""
COUNTED_S = 5.0
"""How long the number of the cluster's processors is believed."""
ATTEMPTS = 3
"""How often a job is given out whose result then cannot be read."""


class RayJobs:
    """Does jobs on a cluster; a context manager that connects to it and disconnects. Results stay in `cache`."""

    def __init__(self, address: str, workers: int | None, cache: Cache, place: str = "") -> None:
        """`workers`: jobs under way at most (None: as the cluster has processors); `place` in the place of the folder
        of `cache`. Raises MissingExtraError without Ray, ClusterError where there is no cache."""
        if not place and cache.directory is None:
            raise ClusterError("jobs: there is no cache for results: set PYC_SHARED_CACHE to a folder or a bucket")
        if "://" not in place:
            place = os.path.abspath(place or str(cache.directory))
        self.connection = RayConnection(address)
        self._address, self._limit, self.cache, self.place = address, workers, cache, place
        self._store = open_store(place)
        self._local = LocalJobs(workers or allowed_cpus(), cache)
        self._site = Site(secrets.token_hex(8), place, secrets.token_hex(32), os.getcwd(), versions())
        self._blocks: dict[str, BlockDigests] = {}
        self._workers: dict[tuple[str, int], int] = {}
        self._done = self._processors = 0
        self._counted_s = float("-inf")
        self._heard_s = time.monotonic()

    def __enter__(self) -> Self:
        self._store.put(self._site.probe, b"")
        if not self._store.has(self._site.probe):
            self.__exit__(None, None, None)
            raise ClusterError(f"{self.place}: results of jobs cannot be written there; set PYC_SHARED_CACHE")
        try:
            self.connection.open()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
        with contextlib.suppress(ClusterError):
            self._store.remove(self._site.probe)
        self._local.__exit__(kind, error, trace)
        if self._workers:
            most = max(self._workers.values())
            logger.info("jobs: %d by %d workers of %d bytes at most", self._done, len(self._workers), most)

    def digests(self, paths: Sequence[str], files: SourceFiles) -> dict[str, str]:
        """Return the BLAKE3 of every file, hashed by workers where files are large; their blocks are known then."""
        sent: dict[str, Any] = {}
        for path in paths:
            if path not in self._blocks and not (files.has_digest(path) or files.is_own(path)) and (
                files.size_bytes(path) >= LEAST_BYTES and files.read_bytes(path) <= MOST_READ_BYTES
            ):
                sent[path] = self.connection.hash_file(self._site, path)
        for path in paths:
            if path in sent:
                while not self.finished([sent[path]], POLL_S):
                    pass
                self._adopt(path, self.outcome(sent[path], path), files)
            elif path not in self._blocks and not files.is_own(path):
                self._blocks[path] = found = block_digests(files, path)
                files.adopt(path, found.digest)
        return {path: files.digest(path) for path in paths}

    def results(
        self, jobs: Iterable[Job], files: SourceFiles, backends: Mapping[str, Backend]
    ) -> Generator[Iterator[Bytes]]:
        """Yield the bytes of each job, in order; see `JobExecutor.results`."""
        ordered = list(jobs)
        queue = _Queue(self, deque(job for job in ordered if not self._is_local(job, files)))
        for job in ordered:
            if self._is_local(job, files):
                yield from self._local.results([job], files, backends)
            else:
                yield queue.result(job)

    def _is_local(self, job: Job, files: SourceFiles) -> bool:
        """Whether a job is done here: it is small, or reads what this build has made and no other machine has."""
        read = {source.path for source in job.sources}
        is_small = sum(source.size_bytes for source in job.sources) < LEAST_BYTES
        return is_small or not read <= self._blocks.keys() or any(map(files.is_own, read))

    def _adopt(self, path: str, outcome: Outcome, files: SourceFiles) -> None:
        """Take digests of a worker, who may see another file: what was read here has to be in it."""
        found = BlockDigests(outcome.size_bytes, outcome.digest, outcome.blocks)
        if files.size_bytes(path) != found.size_bytes or not found.begins_like(files, path, files.read_bytes(path)):
            raise IngestError(
                f"{path}: {outcome.machine} has another file there than the machine that builds; give every machine "
                "the same checkpoint under the same path"
            )
        self._blocks[path] = found
        files.adopt(path, found.digest)

    def has(self, job: Job) -> bool:
        """Return whether the cache has the result of a job: that of the cluster, or of jobs done here."""
        return self._store.has(job.key) or self._local.has(job)

    def is_published(self, key: str) -> bool:
        """Return whether the cluster's cache has a result."""
        return self._store.has(key)

    def drop(self, key: str) -> None:
        """Remove a result that cannot be read."""
        self._store.remove(key)

    def published(self, key: str) -> Iterator[bytes] | None:
        """Return a result that a worker has published, as soon as it is seen here, or None."""
        deadline_s = time.monotonic() + VISIBLE_S
        while not self._store.has(key) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return self._store.opened(key, counts=False)

    def most_under_way(self) -> int:
        """Return how many jobs may be under way."""
        if self._limit is not None:
            return self._limit
        if time.monotonic() > self._counted_s + COUNTED_S:
            self._processors, self._counted_s = self.connection.processors(), time.monotonic()
        return AHEAD * max(self._processors, 1)

    def assigned(self, job: Job) -> Assignment:
        """Return what a worker is told of a job."""
        runs: dict[str, list[Any]] = {}
        for source in dict.fromkeys(job.sources):
            runs.setdefault(source.path, []).append(self._blocks[source.path].run(source.offset, source.size_bytes))
        known = tuple(
            KnownFile(path, self._blocks[path].size_bytes, tuple(found)) for path, found in runs.items()
        )
        return Assignment(self._site, job.without_shared(), known)

    def finished(self, references: list[Any], timeout_s: float) -> list[Any]:
        """Return what has an answer of what was sent, and wait for that a while if nothing has.

        Raises ClusterError when for PATIENCE_S nothing had one, and there is no worker left.
        """
        found = self.connection.finished(references, timeout_s)
        now_s = time.monotonic()
        if found or not timeout_s:
            self._heard_s = now_s
        elif now_s - self._heard_s > PATIENCE_S:
            self.connection.require_processors(PATIENCE_S)
            self._heard_s = now_s
        return found

    def outcome(self, reference: Any, name: str) -> Outcome:
        """Return what a worker answers, and raise the error it met."""
        outcome = msgspec.msgpack.decode(self.connection.answer(reference, name), type=Outcome)
        worker = outcome.machine, outcome.process
        self._workers[worker] = max(self._workers.get(worker, 0), outcome.peak_rss_bytes)
        self._done += 1
        if outcome.error:
            kind = getattr(errors, outcome.error, None)
            if isinstance(kind, type) and issubclass(kind, PycError):
                raise kind(outcome.message)
            raise ClusterError(outcome.message)
        return outcome


class _Queue:
    """The jobs of a build on their way: some under way, those behind them waiting, results ready in any order."""

    def __init__(self, owner: RayJobs, waiting: deque[Job]) -> None:
        self._owner, self._waiting = owner, waiting
        self._under_way: dict[Any, Job] = {}
        self._ready: set[str] = set()
        self._shared: tuple[object, Any] = (None, None)

    def result(self, job: Job) -> Iterator[bytes]:
        """Return the bytes of a job, the next in order, when a worker has published them."""
        for _ in range(ATTEMPTS):
            while job.key not in self._ready:
                self._send()
                self._collect(POLL_S)
            self._send()
            self._collect(0)
            found = self._owner.published(job.key)
            if found is not None:
                return found
            logger.warning("jobs: %s: the result cannot be read; it is computed again", job.name)
            self._owner.drop(job.key)
            self._ready.discard(job.key)
            self._waiting.appendleft(job)
        raise ClusterError(
            f"{job.name}: a worker has written its part, and it cannot be read in {self._owner.place}; every machine "
            "has to see the same cache, and it has to be large enough: set PYC_SHARED_CACHE, PYC_CACHE_BYTES"
        )

    def _send(self) -> None:
        under_way = {job.key for job in self._under_way.values()}
        while self._waiting and len(self._under_way) < self._owner.most_under_way():
            job = self._waiting.popleft()
            if job.key in under_way or job.key in self._ready:
                continue
            is_hit = self._owner.is_published(job.key)
            if job.counts:
                self._owner.cache.count(is_hit=is_hit)
            if is_hit:
                self._ready.add(job.key)
                continue
            under_way.add(job.key)
            self._under_way[self._owner.connection.do_job(self._owner.assigned(job), self._reference(job))] = job

    def _reference(self, job: Job) -> Any:
        """Return what stands on the cluster for a value that several jobs share, sent once."""
        if job.shared is None:
            return None
        if self._shared[0] is not job.shared:
            self._shared = (job.shared, self._owner.connection.share(job.shared()))
        return self._shared[1]

    def _collect(self, timeout_s: float) -> None:
        """Take what has finished, and wait for that if nothing has."""
        if self._under_way:
            for reference in self._owner.finished(list(self._under_way), timeout_s):
                job = self._under_way.pop(reference)
                self._owner.outcome(reference, job.name)
                self._ready.add(job.key)
