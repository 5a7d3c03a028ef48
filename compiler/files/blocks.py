"""Digests of a file's blocks: by them another machine knows the bytes it reads for those that the build hashed.

A device, an inode or a time says nothing on another machine, and a header nothing about the weights behind it: two
fine-tunes of a model have the same. So a file that is hashed for a build on several machines is hashed by blocks in the
same reading, and whoever reads rows of a tensor there compares every block with its digest before a number is made of
it. That holds for a file that changes meanwhile, too.
"""

from __future__ import annotations

import os
import socket
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from blake3 import blake3

from pyc.compiler.files.source_files import READ_BYTES, SourceFiles
from pyc.runtime.errors import IngestError

BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 32
KEPT = 8
"""Blocks kept, of which a part was read: the next rows are likely to begin there."""

assert READ_BYTES % BLOCK_BYTES == 0


@dataclass(frozen=True, slots=True)
class BlockDigests:
    """The size of a file, its BLAKE3 in hex, and those of its blocks of BLOCK_BYTES, one after another."""

    size_bytes: int
    digest: str
    blocks: bytes

    def begins_like(self, files: SourceFiles, path: str, size_bytes: int) -> bool:
        """Return whether the first blocks of a file, those that have its first `size_bytes`, are these."""
        for at in range(0, size_bytes, BLOCK_BYTES):
            block = bytearray(min(BLOCK_BYTES, self.size_bytes - at))
            files.read_into(path, memoryview(block), at)
            first = at // BLOCK_BYTES * DIGEST_BYTES
            if blake3(block).digest() != self.blocks[first : first + DIGEST_BYTES]:
                return False
        return True

    def run(self, offset: int, size_bytes: int) -> Run:
        """Return the digests of the blocks that have these bytes."""
        first, last = offset // BLOCK_BYTES, (offset + size_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES
        return Run(first, self.blocks[first * DIGEST_BYTES : last * DIGEST_BYTES])


@dataclass(frozen=True, slots=True)
class Run:
    """Digests of consecutive blocks, from block `first` on."""

    first: int
    blocks: bytes


def block_digests(files: SourceFiles, path: str) -> BlockDigests:
    """Hash a file by blocks and as a whole, in one reading. Raises OSError."""
    whole, size_bytes, blocks = blake3(), 0, bytearray()
    for part in files.whole(path):
        whole.update(part)
        for at in range(0, len(part), BLOCK_BYTES):
            blocks += blake3(part[at : at + BLOCK_BYTES]).digest()
        size_bytes += len(part)
    return BlockDigests(size_bytes, whole.hexdigest(), bytes(blocks))


class VerifiedFiles(SourceFiles):
    """Files of which each block that is read has to have its digest; relative paths start at `folder`.

    What is read of a file has to be told first (`expect`).
    """

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._digests: dict[tuple[str, int], bytes] = {}
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._kept_lock = Lock()

    def expect(self, path: str, size_bytes: int, runs: Iterable[Run]) -> None:
        """Say what a file has: how many bytes, and in which blocks what. Raises IngestError where the size differs."""
        self._sizes[path] = size_bytes
        if self.size_bytes(path) != size_bytes:
            raise IngestError(
                f"{path}: on {socket.gethostname()} it has {self.size_bytes(path)} bytes, and {size_bytes} where the "
                "build runs; give every machine the same checkpoint under the same path"
            )
        for run in runs:
            for at in range(0, len(run.blocks), DIGEST_BYTES):
                self._digests[path, run.first + at // DIGEST_BYTES] = run.blocks[at : at + DIGEST_BYTES]

    def size_bytes(self, path: str) -> int:
        """Return the size of a file when it was opened."""
        return super().size_bytes(os.path.join(self._folder, path))

    def read_into(self, path: str, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes from `offset` on, each block of them verified. Raises IngestError."""
        end = min(offset + len(buffer), self._sizes[path])
        at = offset
        while at < end:
            index, within = divmod(at, BLOCK_BYTES)
            stop = min((index + 1) * BLOCK_BYTES, self._sizes[path])
            if within == 0 and end >= stop:
                part = buffer[at - offset : stop - offset]
                self._read_block(path, index, part)
                at = stop
                continue
            data = self._block(path, index, stop - index * BLOCK_BYTES)
            taken = min(end, stop) - at
            buffer[at - offset : at - offset + taken] = data[within : within + taken]
            at += taken
        return max(end - offset, 0)

    def check(self, paths: Iterable[str] | None = None) -> None:
        """Nothing: every byte that was read had its digest."""

    def _block(self, path: str, index: int, size_bytes: int) -> bytes:
        with self._kept_lock:
            if (path, index) in self._kept:
                self._kept.move_to_end((path, index))
                return self._kept[path, index]
        buffer = bytearray(size_bytes)
        self._read_block(path, index, memoryview(buffer))
        with self._kept_lock:
            self._kept[path, index] = data = bytes(buffer)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return data

    def _read_block(self, path: str, index: int, buffer: memoryview) -> None:
        got = super().read_into(os.path.join(self._folder, path), buffer, index * BLOCK_BYTES)
        if got < len(buffer) or blake3(buffer).digest() != self._digests[path, index]:
            raise IngestError(
                f"{path}: on {socket.gethostname()} the bytes from {index * BLOCK_BYTES} on are not those that the "
                "build hashed: the file changed, or is another there; give every machine the same checkpoint, and "
                "build again"
            )
