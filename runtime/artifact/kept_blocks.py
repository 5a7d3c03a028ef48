"""Bytes of chunks that a pull has received and not verified, so that one which is cut off again and again goes on.

They lie in the partial file where they belong. Behind the artifact's end, a note says which are there:

    head     what it is, and the prelude of the artifact, whose hash of the header stands for all chunks
    blocks   a byte for each BLOCK_BYTES of each chunk, in order: 1 once they have been written, 0 before

Nothing counts by it: it says what need not be fetched before the whole chunk is hashed, and where that is wrong, the
chunk is fetched anew. It is written behind the bytes that it tells of, and cut off before the file gets its name.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from pathlib import Path

from pyc.runtime.artifact.format import Chunk, Prelude
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.limits import limit_remedy
from pyc.runtime.host.signal_handlers import unless_signalled

BLOCK_BYTES = 16 << 10
KEEP_S = 0.05
"""What comes is written once in so long, as more comes, and when its piece ends: a kill loses the rest of it."""
Holes = list[tuple[int, int]]
"""Parts of a chunk that are to be fetched: where each begins and ends."""
_HEAD = b"pyc blocks 1\n\0\0\0"
_KEPT = b"\1"


class KeptBlocks:
    """What lies in an open partial file of chunks that are not all there. For several threads, each at other chunks or
    at other blocks. Raises ArtifactError where the file cannot be written."""

    def __init__(
        self, descriptor: int, part: Path, chunks: Sequence[Chunk], payload: int, end: int, prelude: Prelude
    ) -> None:
        """`end` is the artifact's size, behind which the note lies."""
        self._descriptor, self._part = descriptor, part
        self._chunks, self._payload, self._end = chunks, payload, end
        self._head = _HEAD + prelude.pack()
        self._first = list(accumulate((_blocks(chunk) for chunk in chunks), initial=end + len(self._head)))
        self._reused: dict[int, int] = {}

    @property
    def note_bytes(self) -> int:
        """How large the note is."""
        return self._first[-1] - self._end

    @property
    def reused_bytes(self) -> int:
        """How many bytes that an earlier try left were of use, once all is there."""
        return sum(self._reused.values())

    def begin(self, missing: Iterable[int]) -> bool:
        """Give the file its size; what is known of `missing` stays, if it is of this artifact. False where files may be
        as large as the artifact and no larger: then there is no note. Raises OSError."""
        try:
            self._begin(missing)
        except unless_signalled(OSError) as error:
            if error.errno != errno.EFBIG:
                raise
            return False
        return True

    def _begin(self, missing: Iterable[int]) -> None:
        if os.pread(self._descriptor, len(self._head), self._end) != self._head:
            os.ftruncate(self._descriptor, self._end)  # of another version, or whatever lay there
            os.ftruncate(self._descriptor, self._first[-1])
            write(self._descriptor, self._end, memoryview(self._head))
            return
        os.ftruncate(self._descriptor, self._first[-1])
        for number in missing:
            size_bytes = self._chunks[number].stored_bytes
            left = _size(self.holes(number))
            if not left:  # all there, and wrong
                self.forget(number)
            elif left < size_bytes:
                self._reused[number] = size_bytes - left

    def end(self) -> None:
        """Cut the note off: all chunks are there. Raises OSError."""
        os.ftruncate(self._descriptor, self._end)

    def close(self) -> None:
        """Write nothing more: the file is about to be closed, perhaps before all threads have ended."""
        self._descriptor = -1

    def holes(self, number: int) -> Holes:
        """What of a chunk is not there."""
        chunk = self._chunks[number]
        count = _blocks(chunk)
        note = os.pread(self._descriptor, count, self._first[number]).ljust(count, b"\0")
        found: Holes = []
        for is_kept, blocks in groupby(range(count), lambda index: note[index] == _KEPT[0]):
            if not is_kept:
                indices = list(blocks)
                found.append((indices[0] * BLOCK_BYTES, min((indices[-1] + 1) * BLOCK_BYTES, chunk.stored_bytes)))
        return found

    def whole_end(self, stop: int) -> int:
        """Where the last whole block ends of the first `stop` bytes of a chunk."""
        return stop - stop % BLOCK_BYTES

    def arriving(self) -> Arriving:
        """What takes the bytes of a piece as they come."""
        return Arriving(self)

    def fill(self, number: int, stored: memoryview, holes: Holes) -> None:
        """Read what lies between `holes` into the stored bytes of a chunk."""
        start = self._payload + self._chunks[number].offset
        done = 0
        for hole, end in [*holes, (len(stored), len(stored))]:
            while done < hole and (count := os.preadv(self._descriptor, [stored[done:hole]], start + done)):
                done += count
            done = end

    def take(self, number: int, stored: memoryview, begin: int, end: int) -> int:
        """Write the blocks that lie within [begin, end) of a chunk's stored bytes, and note them; up to where."""
        first = -(-begin // BLOCK_BYTES)
        stop = _blocks(self._chunks[number]) if end == len(stored) else end // BLOCK_BYTES
        if stop <= first:
            return begin
        begin, end = first * BLOCK_BYTES, min(stop * BLOCK_BYTES, end)
        self._write(self._payload + self._chunks[number].offset + begin, stored[begin:end])
        self._write(self._first[number] + first, memoryview(_KEPT * (stop - first)))
        return end

    def forget(self, number: int) -> None:
        """Note that nothing of a chunk is there: it is wrong, or about to come from elsewhere."""
        self._write(self._first[number], memoryview(bytes(_blocks(self._chunks[number]))))
        self._reused.pop(number, None)

    def _write(self, offset: int, data: memoryview) -> None:
        try:
            write(self._descriptor, offset, data)
        except unless_signalled(OSError) as error:  # which would count as the network's
            raise not_written(self._part, error) from error


class Arriving:
    """A piece on its way: what comes of it goes to its blocks, now and then."""

    def __init__(self, blocks: KeptBlocks) -> None:
        self._blocks = blocks
        self._spans: list[tuple[int, int, memoryview, int, int]] = []
        self._done = self._kept = 0
        self._wrote_s = time.monotonic()

    def add(self, at: int, number: int, stored: memoryview, begin: int, end: int) -> None:
        """Say that [begin, end) of a chunk's stored bytes lie at `at` in the piece, behind those that were added."""
        self._spans.append((at, number, stored, begin, end))

    def came(self, done: int) -> None:
        """Be told that so many bytes of the piece are there."""
        self._done = done
        if time.monotonic() - self._wrote_s >= KEEP_S:
            self.keep()

    def keep(self) -> None:
        """Write what is there."""
        while self._spans:
            at, number, stored, begin, end = self._spans[0]
            come = min(begin + self._done - at, end)
            if come > begin:
                self._kept = self._blocks.take(number, stored, max(self._kept, begin), come)
            if come < end:
                break
            del self._spans[0]
            self._kept = 0
        self._wrote_s = time.monotonic()


def write(descriptor: int, offset: int, data: memoryview) -> None:
    """Write all of `data` at `offset`. Raises OSError."""
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


def not_written(part: Path, error: OSError) -> ArtifactError:
    """What to raise where a partial file cannot be written."""
    return ArtifactError(f"{part}: cannot be written: {error.strerror}{limit_remedy(error)}")


def _blocks(chunk: Chunk) -> int:
    return -(-chunk.stored_bytes // BLOCK_BYTES)


def _size(holes: Holes) -> int:
    return sum(end - begin for begin, end in holes)
