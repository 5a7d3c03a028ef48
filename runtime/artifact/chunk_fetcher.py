"""Fetches chunks from a remote source on several threads, in the order they are wanted, and verifies each.

Threads take pieces of the file, in order, so that what is wanted first is whole first: a chunk's pieces come over
several connections, and chunks that lie together share a piece, as a request for each small one would be a round trip
each. A piece is as large as the link brings in a quarter of a second. Bytes go straight to where they are wanted
(chunks that have to be decoded, and those that nobody keeps, into a buffer of their own), and count for nothing before
the digest of the whole chunk is right. One that is wrong is fetched once more, as a cache in between may have mixed up.
What an earlier try left of a chunk (`KeptBlocks`) is not fetched, and comes from there before the digest is taken.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blake3 import blake3

from pyc.runtime.artifact.chunk_cache import ChunkCache
from pyc.runtime.artifact.chunks import Wanted
from pyc.runtime.artifact.codecs import decode
from pyc.runtime.artifact.format import Chunk
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.host.threads import has_room_for_a_thread
from pyc.runtime.sources.protocol import RemoteSource

if TYPE_CHECKING:
    from pyc.runtime.artifact.kept_blocks import Arriving, Holes, KeptBlocks

CONNECTIONS = 4
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 1 << 20, 8 << 20
PIECE_S = 0.25
DECODERS = 2
"""Chunks that are decoded at a time: each takes the memory of one more."""
TRIES = 2
"""How often a chunk is fetched whose digest is wrong."""

Keep = Callable[[int, memoryview], None]
"""Told the number and the stored bytes of a chunk that is verified, on the thread that did it."""


@dataclass(slots=True)
class _Chunk:
    """A chunk on its way: its stored bytes from the moment that the first of them are asked for, which of them are to
    be fetched, and `at`, before which all of those have been given out."""

    number: int
    target: memoryview | None
    stored: memoryview | None = field(default=None, repr=False)
    missing_bytes: int = -1
    tries: int = 0
    holes: Holes = field(default_factory=list)
    at: int = 0


@dataclass(slots=True)
class _Piece:
    """Bytes of the file from `offset` on, those of chunks into `parts`, and the zeros between chunks into `gaps`."""

    offset: int
    parts: list[memoryview] = field(default_factory=list)
    of: list[tuple[_Chunk, int]] = field(default_factory=list)
    gaps: list[tuple[_Chunk, memoryview]] = field(default_factory=list)
    arriving: Arriving | None = None
    size_bytes: int = 0


Progress = Callable[[int, int], None]
"""Told, on threads, how many bytes of how many are verified; not of two chunks at a time."""


class ChunkFetcher:
    """Fetches `wanted` in that order. Threads begin with `start`."""

    def __init__(
        self,
        source: RemoteSource,
        chunks: Sequence[Chunk],
        payload: int,
        wanted: Iterable[Wanted],
        where: Callable[[int], str],
        *,
        cache: ChunkCache | None = None,
        keep: Keep | None = None,
        blocks: KeptBlocks | None = None,
        reads_cache: bool = True,
    ) -> None:
        """`payload` is where the chunks' offsets count from, `where` names a chunk in messages, `blocks` has what is
        there of chunks, and takes what comes before it is verified. Without `reads_cache` all bytes are fetched."""
        self._source, self._chunks, self._payload = source, chunks, payload
        self._where, self._cache, self._keep, self._blocks = where, cache, keep, blocks
        self._reads_cache = reads_cache
        self._queue = deque(_Chunk(each.number, each.target) for each in wanted)
        self._again: deque[_Chunk] = deque()
        self._left = len(self._queue)
        self._piece_bytes = LEAST_PIECE_BYTES
        self._state = threading.Lock()
        self._waiting: list[threading.Lock] = []  # each held by who waits for news, until it is told
        self._done: set[int] = set()
        self._decoding = threading.Semaphore(DECODERS)
        self._error: BaseException | None = None
        self._is_stopped = False
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self.done_bytes = 0
        self.total_bytes = sum(chunks[each.number].stored_bytes for each in self._queue)
        self.progress: Progress = lambda done_bytes, total_bytes: None

    @property
    def is_complete(self) -> bool:
        """Whether all is there and verified."""
        return self._left == 0

    def start(self, threads: int = CONNECTIONS) -> None:
        """Begin to fetch on threads of its own. Without any, `wait` does the work."""
        with contextlib.suppress(RuntimeError):  # the system has no more, or the interpreter is ending
            for _ in range(min(threads, max(self._left, 1))):
                if not has_room_for_a_thread():
                    break
                thread = threading.Thread(target=self._work, name="pyc-fetch", daemon=True)
                thread.start()
                self._threads.append(thread)

    def run(self) -> None:
        """Fetch all; nothing goes on where that fails or is interrupted. Raises what went wrong."""
        try:
            self.start()
            self.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self, numbers: Iterable[int] | None = None) -> None:
        """Return when these chunks (all without) are verified. Raises what went wrong: ArtifactError mostly."""
        if self._process != os.getpid():  # whose threads are gone, and may have taken locks with them
            if self.is_complete:
                return
            raise RunError("this process was forked while weights were being fetched; load the artifact in the child")
        if not self._threads:
            self._work()
        while True:
            with self._state:
                if self.is_complete if numbers is None else self._done.issuperset(numbers):
                    break
                if self._error is not None:
                    raise self._error
                if self._is_stopped:
                    raise ArtifactError("fetching was ended before all was there: the model was closed")
                news = self._news()
            news.acquire()
        if numbers is None:
            self._join()

    def stop(self) -> None:
        """Fetch nothing more, close the source, and wait for the threads. Safe to call again."""
        if self._process != os.getpid():
            return
        with self._state:
            self._is_stopped = True
            self._tell()
        self._source.close()
        self._join()

    # --- threads

    def _news(self) -> threading.Lock:
        """A lock that `_tell` releases; `_state` is held. Locks alone, no Condition: that runs Python code between
        taking its lock and being entered, and an exception of a signal's handler there leaves it locked for ever."""
        news = threading.Lock()
        news.acquire()
        self._waiting.append(news)
        return news

    def _tell(self) -> None:
        """Wake who waits for news; `_state` is held."""
        while self._waiting:
            news = self._waiting[-1]  # until it is told: an exception may strike between any two lines
            if news.locked():
                news.release()
            self._waiting.pop()

    def _join(self) -> None:
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                if isinstance(task, _Piece):
                    self._fetch(task)
                else:
                    self._from_cache(task)
        except BaseException as error:  # noqa: BLE001 -- who waits gets it
            with self._state:
                is_of_close = self._is_stopped and isinstance(error, Exception)  # the source is closed then
                if self._error is None and not is_of_close:
                    self._error = error
                self._tell()

    def _next(self) -> _Piece | _Chunk | None:
        """What to do next: a piece, or a chunk that the cache has; None at the end, and after an error."""
        while True:
            with self._state:
                if self._is_stopped or self._error is not None or self._left == 0:
                    return None
                if self._again:
                    return self._whole(self._again.popleft())
                if self._queue:
                    first = self._queue[0]
                    if self._is_cached(first):
                        return self._queue.popleft()
                    return self._piece()
                news = self._news()
            news.acquire()  # another thread may have to fetch one again

    def _is_cached(self, coming: _Chunk) -> bool:
        """Whether a chunk of which nothing has been asked for is in the cache."""
        return coming.stored is None and self._reads_cache and self._has(self._chunks[coming.number])

    def _has(self, chunk: Chunk) -> bool:
        return self._cache is not None and self._cache.has(chunk)

    def _piece(self) -> _Piece:
        """The next bytes of the queue, as far as they lie together."""
        piece: _Piece | None = None
        while self._queue and (piece is None or piece.size_bytes < self._piece_bytes):
            coming = self._queue[0]
            left = [(max(begin, coming.at), end) for begin, end in self._holes(coming) if end > coming.at]
            begin, end = left[0]
            offset = self._payload + self._chunks[coming.number].offset + begin
            if piece is None:
                piece = self._empty_piece(offset)
            elif offset != piece.offset + piece.size_bytes or self._is_cached(coming):
                break
            stop = self._stop(begin, min(end, begin + self._piece_bytes - piece.size_bytes), end)
            self._add(piece, coming, begin, stop - begin)
            coming.at = stop
            if stop == left[-1][1]:
                self._queue.popleft()
            if stop < end:
                break
        assert piece is not None
        return piece

    def _stop(self, begin: int, stop: int, end: int) -> int:
        """Where to end what begins at `begin`: where a block does, as no other piece brings the rest of it."""
        if self._blocks is None or stop == end:
            return stop
        whole = self._blocks.whole_end(stop)
        return whole if whole > begin else stop

    def _holes(self, coming: _Chunk) -> Holes:
        """What of a chunk is to be fetched; `_state` is held."""
        if not coming.holes and self._blocks is not None:
            coming.holes = self._blocks.holes(coming.number)
        coming.holes = coming.holes or [(0, self._chunks[coming.number].stored_bytes)]
        return coming.holes

    def _empty_piece(self, offset: int) -> _Piece:
        return _Piece(offset, arriving=None if self._blocks is None else self._blocks.arriving())

    def _whole(self, coming: _Chunk) -> _Piece:
        chunk = self._chunks[coming.number]
        coming.missing_bytes, coming.holes = -1, [(0, chunk.stored_bytes)]
        piece = self._empty_piece(self._payload + chunk.offset)
        self._add(piece, coming, 0, chunk.stored_bytes)
        return piece

    def _add(self, piece: _Piece, coming: _Chunk, within: int, size: int) -> None:
        """Put `size` bytes of a chunk into a piece, and the zeros behind it, where they end it."""
        chunk = self._chunks[coming.number]
        stored = self._begin(coming)
        piece.parts.append(stored[within : within + size])
        piece.of.append((coming, size))
        if piece.arriving is not None:
            piece.arriving.add(piece.size_bytes, coming.number, stored, within, within + size)
        piece.size_bytes += size
        if within + size == chunk.stored_bytes and coming.number + 1 < len(self._chunks):
            gap = self._chunks[coming.number + 1].offset - chunk.offset - chunk.stored_bytes
            if gap:
                piece.parts.append(memoryview(bytearray(gap)))
                piece.gaps.append((coming, piece.parts[-1]))
                piece.size_bytes += gap

    def _begin(self, coming: _Chunk) -> memoryview:
        """Where the stored bytes of a chunk go."""
        if coming.stored is None:
            chunk = self._chunks[coming.number]
            direct = coming.target if chunk.codec == "none" else None
            coming.stored = memoryview(bytearray(chunk.stored_bytes)) if direct is None else direct
        if coming.missing_bytes < 0:
            coming.missing_bytes = sum(end - begin for begin, end in self._holes(coming))
        return coming.stored

    def _fetch(self, piece: _Piece) -> None:
        began_s = time.monotonic()
        if piece.arriving is None:
            self._source.read_parts(piece.offset, piece.parts)
        else:
            try:
                self._source.read_parts(piece.offset, piece.parts, piece.arriving.came)
            except ArtifactError:
                piece.arriving.keep()
                raise
            piece.arriving.came(piece.size_bytes)
            piece.arriving.keep()
        elapsed_s = max(time.monotonic() - began_s, 1e-6)
        for coming, gap in piece.gaps:
            self._check_gap(self._chunks[coming.number], coming.number, gap)
        whole = []
        with self._state:
            wished = int(piece.size_bytes / elapsed_s * PIECE_S)
            self._piece_bytes = min(MOST_PIECE_BYTES, max(LEAST_PIECE_BYTES, wished))
            for coming, size in piece.of:
                coming.missing_bytes -= size
                if coming.missing_bytes == 0:
                    whole.append(coming)
        for coming in whole:
            self._finish(coming, is_cached=False)

    def _check_gap(self, chunk: Chunk, number: int, gap: memoryview) -> None:
        """Compare the zeros behind a chunk, which are fetched once more as a chunk is."""
        if bytes(gap).strip(b"\0"):
            self._source.read_parts(self._payload + chunk.offset + chunk.stored_bytes, [gap])
        if bytes(gap).strip(b"\0"):
            what = f"the {len(gap)} bytes of padding after it are not zero"
            raise ArtifactError(f"{self._where(number)}: altered: {what}")

    def _from_cache(self, coming: _Chunk) -> None:
        stored = self._begin(coming)
        assert self._cache is not None
        if self._blocks is not None:
            self._blocks.forget(coming.number)
        if self._cache.read_into(self._chunks[coming.number], stored):
            self._finish(coming, is_cached=True)
        else:
            self._retry(coming)

    def _finish(self, coming: _Chunk, *, is_cached: bool) -> None:
        """Verify a chunk whose bytes are all there, decode it, and say that it may be used."""
        chunk, stored = self._chunks[coming.number], coming.stored
        assert stored is not None
        is_new = coming.holes == [(0, chunk.stored_bytes)]
        if self._blocks is not None and not is_cached and not is_new:
            self._blocks.fill(coming.number, stored, coming.holes)
        if blake3(stored).hexdigest() != chunk.blake3:
            if is_cached and self._cache is not None:
                self._cache.drop(chunk)
                self._retry(coming)
                return
            coming.tries += is_new
            if coming.tries < TRIES:
                self._retry(coming)
                return
            raise ArtifactError(f"{self._where(coming.number)}: altered: its BLAKE3 digest is not the header's")
        if self._keep is not None:
            self._keep(coming.number, stored)
        if chunk.codec != "none":
            self._decode(coming, chunk, stored)
        if self._cache is not None and not is_cached and (self._reads_cache or not self._has(chunk)):
            self._cache.put(chunk, stored)
        coming.stored = None
        with self._state:
            self._done.add(coming.number)
            self._left -= 1
            self.done_bytes += chunk.stored_bytes
            self._tell()
            self.progress(self.done_bytes, self.total_bytes)

    def _decode(self, coming: _Chunk, chunk: Chunk, stored: memoryview) -> None:
        try:
            with self._decoding:
                raw = decode(chunk.codec, stored, chunk.raw_bytes)
                if coming.target is not None:
                    coming.target[:] = raw
                del raw
        except ArtifactError as error:
            raise ArtifactError(f"{self._where(coming.number)}: {error}") from error

    def _retry(self, coming: _Chunk) -> None:
        if self._blocks is not None:
            self._blocks.forget(coming.number)
        with self._state:
            self._again.append(coming)
            self._tell()
