"""Opens an artifact and hands out its tensors and blobs, each verified before any byte of it escapes.

Order of checks: size, prelude, signature, header hash, canonical form, structure, header padding. Then,
for what is asked for: the digest of the stored bytes, the zero padding behind them, decompression. No
switch skips one.

Tensors stored without compression are views of the mapped file; the rest, and everything in mode "pread",
is decoded into 64-byte aligned buffers of its size. What is checked or decoded is read into private memory first: to
touch a mapping whose file another process cuts is death by SIGBUS. Of an artifact on another machine only what is asked
for is fetched (`chunk_fetcher`), ahead where that is known (`fetch_ahead`).

numpy is imported when the first tensor is handed out, and hashing needs no interpreter: so a program may open an
artifact, begin to verify it in the background, and import what it needs meanwhile.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from blake3 import blake3

from pyc.runtime.artifact.background import Ahead, begin, empty, hashing_threads
from pyc.runtime.artifact.chunks import Wanted, chunks_of, shaped, wanted_into
from pyc.runtime.artifact.codecs import decode
from pyc.runtime.artifact.format import (
    HEADER_OFFSET,
    PRELUDE_BYTES,
    Blob,
    Header,
    Prelude,
    SignatureRecord,
    Tensor,
    file_size,
    parse_prelude,
    parse_signature_record,
    payload_offset,
)
from pyc.runtime.artifact.header_text import decode_header
from pyc.runtime.artifact.program_only import require_weights
from pyc.runtime.artifact.trust.keys import verify_signature
from pyc.runtime.artifact.validate import check_header, tensor_bytes
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.handle import ClosingHandle
from pyc.runtime.sources.local import HeldFile
from pyc.runtime.sources.places import Place, open_place, place_of
from pyc.runtime.sources.protocol import Mode, RemoteSource, Source, as_remote

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyc.runtime.artifact.arrival import Arrival
    from pyc.runtime.artifact.chunk_cache import ChunkCache
    from pyc.runtime.artifact.chunk_fetcher import Keep, Progress
    from pyc.runtime.artifact.kept_blocks import KeptBlocks
    from pyc.runtime.host.aligned import AnyArray

PARALLEL_BYTES = 4 << 20
PIECE_BYTES = 1 << 20
"""What is read at a time of a chunk that is hashed and not kept."""


class Artifact(ClosingHandle):
    """An open artifact. Arrays already handed out stay valid after `close`."""

    _instead = "open its file in each process, and share the Artifact between threads"

    def __init__(
        self, source: Source, path: Place, header: Header, prelude: Prelude, signature: SignatureRecord | None
    ) -> None:
        self.path, self.header, self.prelude = path, header, prelude
        self.version = prelude.major, prelude.minor
        self.signature = signature
        self.size_bytes = file_size(header, prelude.header_size)
        self._source, self._remote = source, as_remote(source)
        self._payload = payload_offset(prelude.header_size)
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self._blobs = {blob.name: blob for blob in header.blobs}
        self._verified: set[int] = set()
        self._ahead: Ahead | None = None
        self._arrival: Arrival | None = None
        self._is_handed_over = False
        self.progress: Progress = lambda done_bytes, total_bytes: None
        self.cache: ChunkCache | None = None
        if self._remote is not None:
            from pyc.runtime.artifact.chunk_cache import chunk_cache

            self.cache = chunk_cache()

    @property
    def is_remote(self) -> bool:
        """Whether each read asks another machine."""
        return self._remote is not None

    def tensor(self, name: str) -> AnyArray:
        """One tensor: read-only, C-contiguous, 64-byte aligned, `bf16` as uint16. Raises ArtifactError."""
        return self.tensors([name])[name]

    def tensors(self, names: Iterable[str] | None = None, *, is_mapped: bool = True) -> dict[str, AnyArray]:
        """Several tensors (all without `names`), verified in parallel, in that order. See `tensor`.

        None maps the file, whatever the mode, where `is_mapped` is false.
        What is not mapped lies together in one buffer, which stays as long as one of them does.
        """
        from pyc.runtime.host.aligned import aligned_buffers

        require_weights(self.header, self.path)
        if self._ahead is not None:
            self._ahead.wait(self._drain)
        names = None if names is None else list(names)
        if self._arrival is not None and names is not None and self._arrival.has(names):
            self._arrival.wait(names)
            return {name: self._arrival.arrays[name] for name in names}
        wanted = list(self._tensors) if names is None else list(dict.fromkeys(names))
        jobs: list[Wanted] = []
        buffers: dict[str, NDArray[np.uint8]] = {}
        copied: list[Tensor] = []
        for name in wanted:
            tensor = self._tensors.get(name)
            if tensor is None:
                raise self._unknown("tensor", name, self._tensors)
            mapped = self._map(tensor) if is_mapped else None
            if mapped is not None:
                buffers[name] = mapped
                jobs.extend(Wanted(index) for index in chunks_of(tensor) if index not in self._verified)
                continue
            copied.append(tensor)
        sizes = [tensor_bytes(tensor.dtype, tensor.shape) for tensor in copied]
        for tensor, buffer in zip(copied, aligned_buffers(sizes), strict=True):
            buffers[tensor.name] = buffer
            jobs.extend(wanted_into(self.header, tensor, buffer.data))
        self._run(jobs)
        return {name: shaped(buffers[name], self._tensors[name]) for name in wanted}

    def blob(self, name: str) -> bytes:
        """A blob's bytes, verified in private memory. Raises ArtifactError."""
        blob = self._blobs.get(name)
        if blob is None:
            raise self._unknown("blob", name, self._blobs)
        if self._arrival is not None and self._arrival.has([name]):
            return self._arrival.blob(name)
        buffer = memoryview(bytearray(blob.raw_bytes))
        self._run(wanted_into(self.header, blob, buffer))
        return bytes(buffer)

    def verify_ahead(self) -> None:
        """Begin to verify the tensors that map from the file, in the background. A second call does nothing.

        The next `tensors` waits for that, and raises what it found: nothing is handed out before.
        """
        if self._ahead is None and self._source.view(0, 0) is not None:
            mapped = [tensor for tensor in self.header.tensors if self._is_plain(tensor)]
            self._ahead = Ahead(self._drain, [Wanted(index) for tensor in mapped for index in chunks_of(tensor)])

    def fetch_ahead(self, tensors: Iterable[str], blobs: Iterable[str]) -> None:
        """Of a remote artifact, begin to fetch these in the background, blobs first. A second call does nothing.

        `tensors` and `blob` wait for what is among them; `arriving` hands over what has yet to come.
        """
        if self._arrival is None and self._remote is not None:
            from pyc.runtime.artifact.arrival import Arrival

            chosen = tensors, dict.fromkeys(blobs)
            self._arrival = Arrival(
                self._remote, self.header, self._payload, self._where, self.cache, *chosen, self.progress
            )

    def arriving(self, names: Iterable[str]) -> Arrival | None:
        """Hand over what is being fetched, if all these tensors are among it; None where nothing is, as from a file.

        Whoever takes it stops it: `close` does not.
        """
        arrival = self._arrival
        if arrival is None or not arrival.has(names):
            return None
        self._is_handed_over = True
        return arrival

    def verify_all(self) -> None:
        """Check every chunk's digest and padding, and that it decodes; what the cache has of a remote artifact does not
        count. Raises ArtifactError if one fails."""
        self._run(list(map(Wanted, range(len(self.header.chunks)))), reads_cache=False)

    def read_chunks(self, wanted: Sequence[Wanted]) -> None:
        """Put what chunks hold, verified, into targets of their raw sizes. Raises ArtifactError and FetchError."""
        self._run(wanted)

    def fetch_chunks(self, numbers: Iterable[int], keep: Keep, blocks: KeptBlocks | None = None) -> None:
        """Give `keep` the stored bytes of these chunks, in any order and on several threads, each verified; `blocks`
        has a part of them, if the artifact is remote. Raises ArtifactError."""
        if self._remote is not None:
            self._fetch_all(self._remote, [Wanted(number) for number in numbers], keep, blocks)
            return
        for number in numbers:
            chunk = self.header.chunks[number]
            stored = memoryview(bytearray(chunk.stored_bytes))
            self._source.read_into(self._payload + chunk.offset, stored)
            self._check_digest(number, blake3(stored).hexdigest())
            keep(number, stored)

    def front(self) -> bytes:
        """All before the payload: prelude, signature, header, zeros."""
        return _read(self._source, 0, min(self._payload, self.size_bytes))

    def hold_file(self) -> HeldFile | None:
        """The file, if any tensor maps from it, for who goes on to use those after `close`. Raises ArtifactError."""
        return self._source.hold() if any(map(self._is_plain, self.header.tensors)) else None

    def close(self) -> None:
        """Close the file. Arrays that map it keep it mapped until they are gone."""
        if self._ahead is not None:
            self._ahead.stop()
        if self._is_handed_over:
            return
        if self._arrival is not None:
            self._arrival.stop()
        self._source.close()

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> ArtifactError:
        near = difflib.get_close_matches(name, list(known), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return ArtifactError(f"{self.path}: has no {kind} {name!r}{hint}")

    def _map(self, tensor: Tensor) -> NDArray[np.uint8] | None:
        """The tensor's bytes in the mapped file, or None when it must be decoded or nothing is mapped."""
        import numpy as np

        if not self._is_plain(tensor):
            return None
        start = self._payload + self.header.chunks[tensor.span.first_chunk].offset
        view = self._source.view(start, tensor_bytes(tensor.dtype, tensor.shape))
        return None if view is None else np.frombuffer(view, dtype=np.uint8)

    def _is_plain(self, tensor: Tensor) -> bool:
        """Whether the tensor lies in the file as it is."""
        return all(self.header.chunks[index].codec == "none" for index in chunks_of(tensor))

    def _run(self, jobs: Sequence[Wanted], *, reads_cache: bool = True) -> None:
        """Do the jobs, on several threads when there is enough to hash; the first error stops all."""
        if self._remote is not None:
            self._fetch_all(self._remote, jobs, reads_cache=reads_cache)
            return
        total = sum(self.header.chunks[job.number].stored_bytes for job in jobs)
        workers = min(hashing_threads(), len(jobs))
        if workers < 2 or total < PARALLEL_BYTES:
            for job in jobs:
                self._fetch(job)
            return
        queue = iter(jobs)
        with ThreadPoolExecutor(workers, thread_name_prefix="pyc-verify") as pool:
            futures = begin(pool, workers, self._drain, queue)
            try:
                if len(futures) < workers:
                    self._drain(queue)
                for future in futures:
                    future.result()
            finally:
                empty(queue)

    def _fetch_all(
        self, source: RemoteSource, jobs: Sequence[Wanted], keep: Keep | None = None, blocks: KeptBlocks | None = None,
        *, reads_cache: bool = True,
    ) -> None:  # fmt: skip
        from pyc.runtime.artifact.chunk_fetcher import ChunkFetcher

        given = source, self.header.chunks, self._payload, jobs, self._where
        ChunkFetcher(*given, cache=self.cache, keep=keep, blocks=blocks, reads_cache=reads_cache).run()
        if self.cache is not None:
            self.cache.trim()

    def _drain(self, queue: Iterator[Wanted]) -> None:
        for job in queue:
            self._fetch(job)

    def _fetch(self, job: Wanted) -> None:
        """Verify one chunk and decode it into the job's target.

        Hashed on this thread: those that BLAKE3 would start are missing after a fork, and it waits for them.
        """
        chunk = self.header.chunks[job.number]
        start = self._payload + chunk.offset
        stored = job.target if chunk.codec == "none" else memoryview(bytearray(chunk.stored_bytes))
        if stored is None:
            digest = self._hash_in_pieces(start, chunk.stored_bytes)
        else:
            self._source.read_into(start, stored)
            digest = blake3(stored).hexdigest()
        self._check_digest(job.number, digest)
        self._check_padding(job.number, start + chunk.stored_bytes)
        if stored is not None and chunk.codec != "none":
            try:
                raw = decode(chunk.codec, stored, chunk.raw_bytes)
            except ArtifactError as error:
                raise ArtifactError(f"{self._where(job.number)}: {error}") from error
            if job.target is not None:
                job.target[:] = raw
        self._verified.add(job.number)

    def _check_digest(self, number: int, digest: str) -> None:
        if digest != self.header.chunks[number].blake3:
            raise ArtifactError(f"{self._where(number)}: altered: its BLAKE3 digest is not the header's")

    def _hash_in_pieces(self, start: int, size_bytes: int) -> str:
        """The digest of bytes that nobody keeps."""
        piece = memoryview(bytearray(min(size_bytes, PIECE_BYTES)))
        hasher = blake3()
        for done in range(0, size_bytes, PIECE_BYTES):
            part = piece[: size_bytes - done]
            self._source.read_into(start + done, part)
            hasher.update(part)
        return hasher.hexdigest()

    def _check_padding(self, index: int, start: int) -> None:
        """The bytes between a chunk and the next are zero; the last has none behind it."""
        if index + 1 == len(self.header.chunks):
            return
        size = self._payload + self.header.chunks[index + 1].offset - start
        if size and _read(self._source, start, size) != bytes(size):
            raise ArtifactError(
                f"{self._where(index)}: altered: the {size} bytes of padding after it are not zero"
            )

    def _where(self, index: int) -> str:
        records: tuple[Tensor | Blob, ...] = self.header.tensors + self.header.blobs
        owner = next(record.name for record in records if index in chunks_of(record))
        return f"{self.path}: chunk {index} ({owner})"


def open_artifact(path: str | os.PathLike[str], *, mode: Mode = "mmap") -> Artifact:
    """Open and check an artifact up to its payload: a file, or a URL (http, https, s3, gs, az) given as text.

    `mode` "mmap" maps uncompressed tensors from the file; "pread" copies them: for files that another process might
    alter, and for weights in huge pages, where those of the file are scattered over memory. A signature that is
    present must be right; whether its key is trusted is the matter of `trust.decision`. Raises ArtifactError,
    naming the file, and FetchError where another machine does not give it.
    """
    place = place_of(path)
    try:
        source = open_place(place, mode)
    except ArtifactError as error:
        raise _explained(error, place) from error
    try:
        return _open(source, place)
    except BaseException as error:
        told = _explained(error, place, source) if isinstance(error, ArtifactError) else None
        source.close()
        if told is not None:
            raise told from error
        raise


def _explained(error: ArtifactError, place: Place, source: Source | None = None) -> ArtifactError:
    from pyc.runtime.artifact.kinds import explained

    return explained(error, place, source)


def _open(source: Source, path: Place) -> Artifact:
    size_bytes = source.size_bytes
    if size_bytes is not None and size_bytes < HEADER_OFFSET:
        raise ArtifactError(f"too short: {size_bytes} bytes, an artifact has at least {HEADER_OFFSET}")
    start = _read(source, 0, HEADER_OFFSET)
    prelude = parse_prelude(start)
    end = HEADER_OFFSET + prelude.header_size
    if size_bytes is not None and end > size_bytes:
        raise ArtifactError(f"file truncated: {size_bytes} bytes, the header alone ends at {end}")
    signature = parse_signature_record(start[PRELUDE_BYTES:])
    if signature is not None:
        verify_signature(signature, start[:PRELUDE_BYTES])
    header = decode_header(_read(source, HEADER_OFFSET, prelude.header_size), prelude)
    if size_bytes is None:
        size_bytes = file_size(header, prelude.header_size)
    check_header(header, prelude, size_bytes)
    if header.chunks:
        padding = payload_offset(prelude.header_size) - end
        if _read(source, end, padding) != bytes(padding):
            raise ArtifactError(f"altered: the {padding} bytes of padding after the header are not zero")
    source.expect(size_bytes)
    return Artifact(source, path, header, prelude, signature)


def _read(source: Source, offset: int, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    source.read_into(offset, memoryview(buffer))
    return bytes(buffer)
