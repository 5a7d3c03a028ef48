"""A worker of a cluster: does one job at a time, and puts the result where all machines find it.

Nothing here knows Ray but that it calls `do_job` and `hash_file`. A worker keeps open what the jobs of a build share,
until a job of another build comes. It trusts nothing about files but digests (`compiler.files.blocks`), and holds a
few pieces at a time, whatever the weight's size.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from threading import Lock

import msgspec

from pyc.backends.protocol import Backend
from pyc.backends.registry import backend_for
from pyc.compiler.files.blocks import BlockDigests, VerifiedFiles, block_digests
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.passes.jobs.assignment import Assignment, Outcome, Site, versions
from pyc.passes.jobs.result_store import ResultStore, open_store
from pyc.runtime.errors import ClusterError, IngestError, PycError, QuantizeError
from pyc.runtime.host.cache_folder import cache_directory
from pyc.runtime.host.machine import peak_rss_bytes


class _Bench:
    """What a worker has at hand for the jobs of one build."""

    def __init__(self, site: Site) -> None:
        self.site = site
        if versions() != site.versions:
            raise ClusterError(
                f"{socket.gethostname()} has {versions()}, and the build {site.versions}; results could differ: "
                "install the same versions on every machine"
            )
        self.store: ResultStore = open_store(site.place)
        if not self.store.has(site.probe):
            raise ClusterError(
                f"{socket.gethostname()} does not see what the build writes to {site.place}; every machine has to see "
                "the same cache: set PYC_SHARED_CACHE to a folder or a bucket that they share"
            )
        self.files = VerifiedFiles(site.folder)
        self._cache = Cache(cache_directory())
        self._backends: dict[str, Backend] = {}

    def backend(self, name: str) -> Backend:
        """Return the backend called so; what it compiles stays on this machine."""
        if name not in self._backends:
            self._backends[name] = backend_for(name, self._cache)
        return self._backends[name]

    def close(self) -> None:
        """Close files, and remove what backends have used."""
        self.files.close()
        for backend in self._backends.values():
            backend.close()


_benches: dict[str, _Bench] = {}
"""The bench of the build that this process works for: one at most."""
_benches_lock = Lock()


def do_job(assignment: Assignment, shared: object = None) -> bytes:
    """Compute a job's result into the shared cache, unless it is there. Returns an `Outcome`, encoded."""
    return _reported(lambda: _done(assignment, shared))


def hash_file(site: Site, path: str) -> bytes:
    """Hash a file as a whole and by blocks. Returns an `Outcome`, encoded."""
    return _reported(lambda: _hashed(site, path))


def _done(assignment: Assignment, shared: object) -> None:
    job, bench = assignment.job, _bench_of(assignment.site)
    for file in assignment.known:
        bench.files.expect(file.path, file.size_bytes, file.runs)
    if bench.store.has(job.key):
        return
    try:
        for _ in bench.store.kept(job.key, (task() for task in job.pieces(bench.files, bench.backend, shared))):
            pass
    except QuantizeError as error:
        raise QuantizeError(f"quantize: {job.name}: {error}") from error
    if not bench.store.has(job.key):
        raise ClusterError(f"{socket.gethostname()} could not write to {assignment.site.place}: is there space?")


def _hashed(site: Site, path: str) -> BlockDigests:
    _bench_of(site)  # refuses what cannot work before the first terabyte is read
    with SourceFiles() as files:
        place = os.path.join(site.folder, path)
        found = block_digests(files, place)
        files.check()
    return found


def _bench_of(site: Site) -> _Bench:
    with _benches_lock:
        if site.build not in _benches:
            while _benches:
                _benches.popitem()[1].close()
            _benches[site.build] = _Bench(site)
        return _benches[site.build]


def _reported(work: Callable[[], BlockDigests | None]) -> bytes:
    started_s = time.perf_counter()
    error, found = None, None
    try:
        found = work()
    except PycError as refused:
        error = refused
    except OSError as refused:
        where = refused.filename or "a file"
        error = IngestError(
            f"{where}: on {socket.gethostname()}: {refused.strerror or refused}; every machine has to see the files of "
            "the model under the same paths"
        )
    outcome = Outcome(
        machine=socket.gethostname(),
        process=os.getpid(),
        peak_rss_bytes=peak_rss_bytes(),
        elapsed_s=time.perf_counter() - started_s,
        error="" if error is None else type(error).__name__,
        message=str(error or ""),
        size_bytes=0 if found is None else found.size_bytes,
        digest="" if found is None else found.digest,
        blocks=b"" if found is None else found.blocks,
    )
    return msgspec.msgpack.encode(outcome)
