"""Tensors and blobs of a remote artifact on their way: memory that is filled, and what to wait for before it is read.

    arrival = artifact.fetch_ahead(tensors=names, blobs=["tokenizer.json"])
    arrival.wait(["model.embed_tokens.weight"])
    arrival.arrays["model.embed_tokens.weight"]

Nothing may read an array before `wait` has returned for it: until then its bytes are not verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pyc.runtime.artifact.chunk_cache import ChunkCache
from pyc.runtime.artifact.chunk_fetcher import ChunkFetcher, Progress
from pyc.runtime.artifact.chunks import chunks_of, shaped, wanted_into
from pyc.runtime.artifact.format import Header
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.sources.protocol import RemoteSource

if TYPE_CHECKING:
    pass


class Arrival:
    """Blobs, then tensors in file order, being fetched. `arrays` are all tensors, read-only, by name."""

    def __init__(
        self,
        source: RemoteSource,
        header: Header,
        payload: int,
        where: Callable[[int], str],
        cache: ChunkCache | None,
        tensors: Iterable[str],
        blobs: Iterable[str],
        progress: Progress = lambda done_bytes, total_bytes: None,
    ) -> None:
        """Take memory for what is named, all of which the header has, and begin. Raises RunError without it."""
        from pyc.runtime.host.aligned import aligned_buffers

        named = set(tensors)
        wanted = [tensor for tensor in header.tensors if tensor.name in named]  # as they lie: in order of first use
        first = {blob.name: blob for blob in header.blobs}
        buffers = aligned_buffers([tensor_bytes(tensor.dtype, tensor.shape) for tensor in wanted])
        self._blobs = {name: bytearray(first[name].raw_bytes) for name in blobs}
        self._chunks = {tensor.name: chunks_of(tensor) for tensor in wanted}
        self._chunks |= {name: chunks_of(first[name]) for name in self._blobs}
        jobs = [job for name, data in self._blobs.items() for job in wanted_into(header, first[name], memoryview(data))]
        for tensor, buffer in zip(wanted, buffers, strict=True):
            jobs += wanted_into(header, tensor, buffer.data)
        self.arrays = {tensor.name: shaped(buffer, tensor) for tensor, buffer in zip(wanted, buffers, strict=True)}
        self._cache = cache
        self._fetcher = ChunkFetcher(source, header.chunks, payload, jobs, where, cache=cache)
        self._fetcher.progress = progress
        self._began_s = time.monotonic()
        self._fetcher.start()

    @property
    def is_complete(self) -> bool:
        """Whether all is there and verified."""
        return self._fetcher.is_complete

    @property
    def left_s(self) -> float:
        """Seconds that the rest takes at the pace so far; a guess."""
        done, total = self._fetcher.done_bytes, self._fetcher.total_bytes
        return (time.monotonic() - self._began_s) * (total - done) / max(done, 1)

    def has(self, names: Iterable[str]) -> bool:
        """Whether these tensors and blobs are among what is fetched."""
        return all(name in self._chunks for name in names)

    def wait(self, names: Iterable[str] | None = None) -> None:
        """Return when these (all without) are there and verified. Raises ArtifactError, FetchError, RunError."""
        if names is None:
            self._fetcher.wait()
            if self._cache is not None:
                self._cache.trim()
        else:
            self._fetcher.wait([number for name in names for number in self._chunks[name]])

    def blob(self, name: str) -> bytes:
        """A blob's bytes, once they are there. Raises as `wait` does."""
        self.wait([name])
        return bytes(self._blobs[name])

    def stop(self) -> None:
        """Fetch nothing more, and close the source."""
        self._fetcher.stop()
