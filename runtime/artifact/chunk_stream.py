"""The tensors of an artifact chunk by chunk, through a few buffers: for memory that is not this process's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from pyc.runtime.artifact.chunks import Wanted, chunks_of
from pyc.runtime.artifact.format import Tensor
from pyc.runtime.artifact.reader import Artifact

LEAST_BUFFERS = 3
"""One that is filled, one that its user reads, one that is still being copied from."""


@dataclass(frozen=True, slots=True)
class Part:
    """Verified bytes of a tensor, from byte `offset` of it: the first `size_bytes` of the buffer `buffer`."""

    tensor: Tensor
    offset: int
    buffer: int
    size_bytes: int


def stream_tensors(artifact: Artifact, names: Iterable[str], buffers: Sequence[memoryview]) -> Iterator[Part]:
    """Yield the bytes of tensors in order, each chunk in one of `buffers`, which hold MAX_CHUNK_BYTES.

    Chunks are read, verified and decoded on threads, into buffers that nobody reads: when a part is asked for, the user
    is done with the buffer of the last part but one, and may still copy from that of the last. Raises ArtifactError and
    FetchError.
    """
    assert len(buffers) >= LEAST_BUFFERS
    by_name = {tensor.name: tensor for tensor in artifact.header.tensors}
    parts = _parts(artifact, [by_name[name] for name in names], len(buffers))
    ahead = len(buffers) - 2
    with ThreadPoolExecutor(ahead, thread_name_prefix="pyc-stream") as pool:
        coming: deque[tuple[Part, Future[None]]] = deque()

        def begin(count: int) -> None:
            for part, number in islice(parts, count):
                target = buffers[part.buffer][: part.size_bytes]
                coming.append((part, pool.submit(artifact.read_chunks, [Wanted(number, target)])))

        begin(ahead)
        try:
            while coming:
                part, future = coming.popleft()
                future.result()
                yield part
                begin(1)
        finally:
            for _, future in coming:
                future.cancel()


def _parts(artifact: Artifact, tensors: Sequence[Tensor], buffers: int) -> Iterator[tuple[Part, int]]:
    """Yield the chunks of tensors with their numbers; they take the buffers by turns."""
    turn = 0
    for tensor in tensors:
        offset = 0
        for number in chunks_of(tensor):
            size_bytes = artifact.header.chunks[number].raw_bytes
            yield Part(tensor, offset, turn % buffers, size_bytes), number
            offset += size_bytes
            turn += 1
