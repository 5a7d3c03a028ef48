"""Writes an artifact: chunks as they come, in bounded memory, then the header in front of them.

    with ArtifactWriter("model.pyca") as writer:
        writer.add_tensor("embedding", "bf16", (vocab, hidden), pieces)
        writer.add_blob("tokenizer.json", data)
        summary = writer.finish(model=..., programs=..., generation=..., provenance=..., signing_key=key)

The order of the calls is the order in the file: what is used first comes first. The header lists digests,
so it is known last; chunk offsets count from the payload's start, and `finish` moves the payload back by
the header's size within the staging file. That costs one more pass over the bytes, but no second file and
no guess, and the result depends on nothing but the contents, the codec choice and the versions of the
codec libraries.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from blake3 import blake3

from pyc.compiler.awaited import Awaited, Workers
from pyc.compiler.files.staging import StagedFile
from pyc.runtime.artifact.codecs import encode
from pyc.runtime.artifact.dtypes import DTYPES, DtypeName
from pyc.runtime.artifact.format import (
    ALIGNMENT,
    MAX_CHUNK_BYTES,
    MAX_EXPANSION,
    UNSIGNED,
    Blob,
    Chunk,
    CodecName,
    Generation,
    Header,
    ModelInfo,
    Prelude,
    Program,
    Provenance,
    Span,
    Tensor,
    file_size,
    required_bits,
)
from pyc.runtime.artifact.header_text import decode_header, encode_header
from pyc.runtime.artifact.trust.keys import SigningKey
from pyc.runtime.artifact.trust.subjects import artifact_digest
from pyc.runtime.artifact.validate import check_header, check_plain, tensor_bytes
from pyc.runtime.errors import ArtifactError

Bytes = bytes | bytearray | memoryview
CodecChoice = Literal["auto", "none", "lz4", "zstd"]

AUTO_LEAST_GAIN = 0.10


@dataclass(frozen=True, slots=True)
class CodecUse:
    """What one codec did: how many chunks it holds, their raw and their stored size."""

    codec: CodecName
    chunks: int
    raw_bytes: int
    stored_bytes: int

    @property
    def gain(self) -> float:
        """The share of the raw bytes it saved, 0 to 1."""
        return 1 - self.stored_bytes / self.raw_bytes if self.raw_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ArtifactSummary:
    """A finished artifact: its file, the SHA-256 of the whole file in hex, the digest of its header by which it can be
    revoked, and what compression gained."""

    path: Path
    sha256: str
    digest: str
    size_bytes: int
    fingerprint: str | None
    codecs: tuple[CodecUse, ...]


class ArtifactWriter:
    """Collects tensors and blobs into a staging file; `finish` publishes it, everything else leaves no trace.

    `codec` "auto" compresses a blob's chunk with zstd when that saves at least 10%, and leaves tensors as
    they are, so that they map from the file without a copy. "lz4" and "zstd" compress what gets smaller,
    "none" nothing. `expected_bytes` lets the writer refuse at once when the disk has too little space;
    `allowed` is called first and just before the rename, and raises when `path` may not be replaced.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        codec: CodecChoice = "auto",
        *,
        expected_bytes: int = 0,
        chunk_bytes: int = MAX_CHUNK_BYTES,
        allowed: Callable[[], None] = lambda: None,
    ) -> None:
        if chunk_bytes % ALIGNMENT or not ALIGNMENT <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise ArtifactError(
                f"chunk_bytes {chunk_bytes} is not a multiple of {ALIGNMENT} of at most {MAX_CHUNK_BYTES}"
            )
        self._codec = codec
        self._chunk_bytes = chunk_bytes
        self._names: set[str] = set()
        self._tensors: list[Tensor] = []
        self._blobs: list[Blob] = []
        self._chunks: list[Chunk] = []
        self._file = StagedFile(path, expected_bytes=expected_bytes, allowed=allowed, is_artifact=True)

    def add_tensor(self, name: str, dtype: DtypeName, shape: Iterable[int], pieces: Iterable[Bytes]) -> None:
        """Append a tensor: `pieces`, of any sizes, are its little-endian C-order bytes.

        Raises ArtifactError when they are not exactly as many as dtype and shape say, or cannot be written.
        """
        sizes = tuple(int(size) for size in shape)
        where = f"tensor {name!r}"
        if dtype not in DTYPES:
            raise ArtifactError(f"{where}: dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        if any(size < 1 for size in sizes) or len(sizes) > 8:
            raise ArtifactError(f"{where}: shape {list(sizes)}: expected at most 8 dimensions of at least 1")
        expected = tensor_bytes(dtype, sizes, where)
        self._claim("tensor", name)
        span = self._append(where, pieces, expected, tensor=True)
        self._tensors.append(Tensor(name, dtype, sizes, span))

    def describe_tensor(self, name: str, dtype: DtypeName, shape: Iterable[int]) -> None:
        """Append a tensor without bytes, for an artifact that requires `PROGRAM_ONLY`. Raises ArtifactError."""
        sizes = tuple(int(size) for size in shape)
        tensor_bytes(dtype, sizes, f"tensor {name!r}")
        self._claim("tensor", name)
        self._tensors.append(Tensor(name, dtype, sizes, Span(len(self._chunks), 0)))

    def add_blob(self, name: str, data: Bytes) -> None:
        """Append a byte string. Raises ArtifactError."""
        self._claim("blob", name)
        size = memoryview(data).nbytes
        self._blobs.append(Blob(name, size, self._append(f"blob {name!r}", [data], size, tensor=False)))

    def finish(
        self,
        *,
        model: ModelInfo,
        generation: Generation,
        provenance: Provenance,
        programs: tuple[Program, ...] = (),
        signing_key: SigningKey | None = None,
        requires: tuple[str, ...] = (),
        accept: Callable[[Path], None] = lambda path: None,
    ) -> ArtifactSummary:
        """Write the header, sign and publish. On ArtifactError an older file is as it was.

        `requires` are the features that a reader has to know, sorted.
        `accept` is given the path of the whole artifact before it has its name, and refuses it by an error.
        """
        header = Header(
            model=model,
            tensors=tuple(self._tensors),
            blobs=tuple(self._blobs),
            programs=programs,
            chunks=tuple(self._chunks),
            generation=generation,
            provenance=provenance,
            requires=requires,
        )
        with self._file as file:
            front, digest = _front(header, signing_key)
            if header.chunks:
                front += bytes(-len(front) % ALIGNMENT)
            file.insert_front(front)
            with Workers(1, "pyc-sync") as pool:  # the disk and the hash take turns else
                synced = Awaited(pool, file.sync)
                sha256 = file.sha256()
                synced.result()
            accept(file.readable_path())
            file.publish()
        fingerprint = signing_key.public.fingerprint if signing_key else None
        use = _codec_use(header.chunks)
        return ArtifactSummary(file.path, sha256, digest, file.size_bytes, fingerprint, use)

    def abort(self) -> None:
        """Drop everything. Safe to call again, and after `finish`."""
        self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _claim(self, kind: str, name: str) -> None:
        check_plain(kind, name)
        if name in self._names:
            raise ArtifactError(f"{kind} {name!r}: the name is used twice")
        self._names.add(name)

    def _append(self, where: str, pieces: Iterable[Bytes], expected: int, *, tensor: bool) -> Span:
        first = len(self._chunks)
        total = 0
        for raw in _rechunk(pieces, self._chunk_bytes):
            total += len(raw)
            if total > expected:
                break
            self._append_chunk(raw, tensor=tensor)
        if total != expected:
            more = " or more" if total > expected else ""
            raise ArtifactError(f"{where}: got {total}{more} bytes, expected {expected}")
        return Span(first, len(self._chunks) - first)

    def _append_chunk(self, raw: memoryview, *, tensor: bool) -> None:
        codec, stored = self._pack(raw, tensor=tensor)
        self._file.write(bytes(-self._file.size_bytes % ALIGNMENT))
        offset = self._file.size_bytes
        self._file.write(stored)
        digest = blake3(stored).hexdigest()
        self._chunks.append(Chunk(offset, len(stored), len(raw), codec, digest))

    def _pack(self, raw: memoryview, *, tensor: bool) -> tuple[CodecName, bytes | memoryview]:
        """The codec of one chunk and its stored bytes, within the format's limit on expansion."""
        if self._codec == "none" or (self._codec == "auto" and (tensor or len(raw) <= ALIGNMENT)):
            return "none", raw
        preferred: CodecName = "zstd" if self._codec == "auto" else self._codec
        least_gain = AUTO_LEAST_GAIN if self._codec == "auto" else 0.0
        candidates: tuple[CodecName, ...] = (preferred, "lz4")  # lz4 cannot exceed 255:1
        for codec in candidates:
            stored = encode(codec, raw)
            if len(stored) >= len(raw) * (1 - least_gain):
                break
            if len(raw) <= len(stored) * MAX_EXPANSION:
                return codec, stored
        return "none", raw


def _front(header: Header, signing_key: SigningKey | None) -> tuple[bytes, str]:
    """Prelude, signature record and header, checked as a reader would, and the artifact's digest."""
    encoded = encode_header(header)
    prelude = Prelude(required_bits(header), len(encoded), hashlib.sha256(encoded).digest())
    check_header(decode_header(encoded, prelude), prelude, file_size(header, len(encoded)))
    packed = prelude.pack()
    record = signing_key.sign(packed).pack() if signing_key else UNSIGNED
    return packed + record + encoded, artifact_digest(prelude.header_sha256)


def _rechunk(pieces: Iterable[Bytes], chunk_bytes: int) -> Iterator[memoryview]:
    """The same bytes in pieces of exactly `chunk_bytes`, the last one shorter."""
    buffer = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        while len(view):
            if not buffer and len(view) >= chunk_bytes:
                yield view[:chunk_bytes]
                view = view[chunk_bytes:]
                continue
            taken = min(chunk_bytes - len(buffer), len(view))
            buffer += view[:taken]
            view = view[taken:]
            if len(buffer) == chunk_bytes:
                yield memoryview(buffer)
                buffer = bytearray()
    if buffer:
        yield memoryview(buffer)


def _codec_use(chunks: tuple[Chunk, ...]) -> tuple[CodecUse, ...]:
    uses = []
    names: tuple[CodecName, ...] = ("none", "lz4", "zstd")
    for codec in names:
        sizes = [(chunk.raw_bytes, chunk.stored_bytes) for chunk in chunks if chunk.codec == codec]
        if sizes:
            raw_bytes, stored_bytes = (sum(column) for column in zip(*sizes, strict=True))
            uses.append(CodecUse(codec, len(sizes), raw_bytes, stored_bytes))
    return tuple(uses)
