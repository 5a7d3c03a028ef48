"""Opens an artifact and hands out its tensors and blobs, each verified before any byte of it escapes.

Order of checks: size, prelude, signature, header hash, canonical form, structure, header padding. Then,
for what is asked for: the digest of the stored bytes, the zero padding behind them, decompression. No
switch skips one.

Tensors stored without compression are views of the mapped file; the rest, and everything in mode "pread",
is decoded into 64-byte aligned buffers of exactly its size. Blobs hold code: they are verified in private
memory.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.runtime import trust
from pyc.runtime.codecs import decode
from pyc.runtime.dtypes import DTYPES, AnyArray
from pyc.runtime.errors import ArtifactError
from pyc.runtime.format import (
    HEADER_OFFSET,
    PRELUDE_BYTES,
    Blob,
    Header,
    SignatureRecord,
    Tensor,
    decode_header,
    parse_prelude,
    parse_signature_record,
    payload_offset,
)
from pyc.runtime.sources import Mode, Source, open_source
from pyc.runtime.validate import check_header, tensor_bytes

MAX_WORKERS = 4
PARALLEL_BYTES = 4 << 20
BUFFER_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class _Job:
    """One chunk to verify, and where its raw bytes go, if anywhere. `private` work never uses a mapping."""

    chunk: int
    target: memoryview | None = None
    private: bool = False


def aligned_empty(size_bytes: int) -> NDArray[np.uint8]:
    """An uninitialised buffer `uint8[size_bytes]` that starts on a 64-byte boundary. Raises ArtifactError."""
    try:
        whole = np.empty(size_bytes + BUFFER_ALIGNMENT, dtype=np.uint8)
    except MemoryError as error:
        raise ArtifactError(f"cannot allocate {size_bytes} bytes") from error
    start = -whole.ctypes.data % BUFFER_ALIGNMENT
    return whole[start : start + size_bytes]


class Artifact:
    """An open artifact. Arrays already handed out stay valid after `close`."""

    def __init__(
        self, source: Source, path: Path, header: Header, header_size: int, signature: SignatureRecord | None
    ) -> None:
        self.path = path
        self.header = header
        self.signature = signature
        self.size_bytes = source.size_bytes
        self._source = source
        self._payload = payload_offset(header_size)
        self._tensors = {tensor.name: tensor for tensor in header.tensors}
        self._blobs = {blob.name: blob for blob in header.blobs}
        self._verified: set[int] = set()

    def tensor(self, name: str) -> AnyArray:
        """One tensor: read-only, C-contiguous, 64-byte aligned, `bf16` as uint16. Raises ArtifactError."""
        return self.tensors([name])[name]

    def tensors(self, names: Iterable[str] | None = None) -> dict[str, AnyArray]:
        """Several tensors (all without `names`), verified in parallel, in that order. See `tensor`."""
        wanted = list(self._tensors) if names is None else list(dict.fromkeys(names))
        jobs: list[_Job] = []
        buffers: dict[str, NDArray[np.uint8]] = {}
        for name in wanted:
            tensor = self._tensors.get(name)
            if tensor is None:
                raise self._unknown("tensor", name, self._tensors)
            mapped = self._map(tensor)
            if mapped is not None:
                buffers[name] = mapped
                jobs.extend(_Job(index) for index in _chunks_of(tensor) if index not in self._verified)
                continue
            buffers[name] = aligned_empty(tensor_bytes(tensor.dtype, tensor.shape))
            jobs.extend(self._jobs_into(tensor, buffers[name].data, private=False))
        self._run(jobs)
        return {name: _shaped(buffers[name], self._tensors[name]) for name in wanted}

    def blob(self, name: str) -> bytes:
        """A blob's bytes, verified in private memory. Raises ArtifactError."""
        blob = self._blobs.get(name)
        if blob is None:
            raise self._unknown("blob", name, self._blobs)
        buffer = aligned_empty(blob.raw_bytes)
        self._run(self._jobs_into(blob, buffer.data, private=True))
        return buffer.tobytes()

    def verify_all(self) -> None:
        """Checks every chunk's digest and padding, and that it decodes. Raises ArtifactError if one fails."""
        self._run([_Job(index) for index in range(len(self.header.chunks))])

    def close(self) -> None:
        """Closes the file. Arrays that map it keep it mapped until they are gone."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _unknown(self, kind: str, name: str, known: Iterable[str]) -> ArtifactError:
        near = difflib.get_close_matches(name, list(known), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return ArtifactError(f"{self.path}: has no {kind} {name!r}{hint}")

    def _map(self, tensor: Tensor) -> NDArray[np.uint8] | None:
        """The tensor's bytes in the mapped file, or None when it must be decoded or nothing is mapped."""
        chunks = self.header.chunks
        if any(chunks[index].codec != "none" for index in _chunks_of(tensor)):
            return None
        start = self._payload + chunks[tensor.span.first_chunk].offset
        view = self._source.view(start, tensor_bytes(tensor.dtype, tensor.shape))
        return None if view is None else np.frombuffer(view, dtype=np.uint8)

    def _jobs_into(self, record: Tensor | Blob, buffer: memoryview, *, private: bool) -> list[_Job]:
        jobs = []
        done = 0
        for index in _chunks_of(record):
            size = self.header.chunks[index].raw_bytes
            jobs.append(_Job(index, buffer[done : done + size], private))
            done += size
        return jobs

    def _run(self, jobs: Sequence[_Job]) -> None:
        """Does the jobs, on several threads when there is enough to hash; the first error stops all."""
        total = sum(self.header.chunks[job.chunk].stored_bytes for job in jobs)
        workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)), len(jobs))
        if workers < 2 or total < PARALLEL_BYTES:
            for job in jobs:
                self._fetch(job, blake3.AUTO)
            return
        queue = iter(jobs)
        with ThreadPoolExecutor(workers, thread_name_prefix="pyc-verify") as pool:
            futures = [pool.submit(self._drain, queue) for _ in range(workers)]
            try:
                for future in futures:
                    future.result()
            finally:
                for _ in queue:
                    pass  # an error or an interrupt leaves nothing for the other workers to begin

    def _drain(self, queue: Iterator[_Job]) -> None:
        for job in queue:
            self._fetch(job, 1)

    def _fetch(self, job: _Job, hash_threads: int) -> None:
        """Verifies one chunk and decodes it into the job's target."""
        chunk = self.header.chunks[job.chunk]
        start = self._payload + chunk.offset
        stored = None if job.private else self._source.view(start, chunk.stored_bytes)
        if stored is None:
            in_place = chunk.codec == "none" and job.target is not None
            stored = job.target if in_place else memoryview(bytearray(chunk.stored_bytes))
            assert stored is not None
            self._source.read_into(start, stored)
            copied = in_place
        else:
            copied = job.target is None and chunk.codec == "none"
        threads = hash_threads if chunk.stored_bytes >= 1 << 20 else 1
        if blake3(stored, max_threads=threads).hexdigest() != chunk.blake3:
            raise ArtifactError(f"{self._where(job.chunk)}: altered: its BLAKE3 digest is not the header's")
        self._check_padding(job.chunk, start + chunk.stored_bytes)
        if not copied:
            try:
                raw = decode(chunk.codec, stored, chunk.raw_bytes)
            except ArtifactError as error:
                raise ArtifactError(f"{self._where(job.chunk)}: {error}") from error
            if job.target is not None:
                job.target[:] = raw
        self._verified.add(job.chunk)

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
        owner = next(record.name for record in records if index in _chunks_of(record))
        return f"{self.path}: chunk {index} ({owner})"


def open_artifact(path: str | os.PathLike[str], *, mode: Mode = "mmap") -> Artifact:
    """Opens and checks an artifact up to its payload.

    `mode` "mmap" maps uncompressed tensors from the file; "pread" copies them, for files that another process
    might alter. A signature that is present must be right; whether its key is trusted is the matter of
    `trust.require_trusted`. Raises ArtifactError, naming the file.
    """
    place = Path(path)
    source = open_source(place, mode)
    try:
        return _open(source, place)
    except BaseException as error:
        source.close()
        if isinstance(error, ArtifactError) and not str(error).startswith(str(place)):
            raise ArtifactError(f"{place}: {error}") from error
        raise


def _open(source: Source, path: Path) -> Artifact:
    size_bytes = source.size_bytes
    if size_bytes < HEADER_OFFSET:
        raise ArtifactError(f"too short: {size_bytes} bytes, an artifact has at least {HEADER_OFFSET}")
    start = _read(source, 0, HEADER_OFFSET)
    prelude = parse_prelude(start)
    end = HEADER_OFFSET + prelude.header_size
    if end > size_bytes:
        raise ArtifactError(f"file truncated: {size_bytes} bytes, the header alone ends at {end}")
    signature = parse_signature_record(start[PRELUDE_BYTES:])
    if signature is not None:
        trust.verify_signature(signature, start[:PRELUDE_BYTES])
    header = decode_header(_read(source, HEADER_OFFSET, prelude.header_size), prelude)
    check_header(header, prelude, size_bytes)
    if header.chunks:
        padding = payload_offset(prelude.header_size) - end
        if _read(source, end, padding) != bytes(padding):
            raise ArtifactError(f"altered: the {padding} bytes of padding after the header are not zero")
    return Artifact(source, path, header, prelude.header_size, signature)


def _read(source: Source, offset: int, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    source.read_into(offset, memoryview(buffer))
    return bytes(buffer)


def _chunks_of(record: Tensor | Blob) -> range:
    first = record.span.first_chunk
    return range(first, first + record.span.chunk_count)


def _shaped(buffer: NDArray[np.uint8], tensor: Tensor) -> AnyArray:
    array = buffer.view(DTYPES[tensor.dtype].numpy).reshape(tensor.shape)
    array.flags.writeable = False
    return array
