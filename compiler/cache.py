"""The build cache: files named by the digest of everything that went into them.

Writers fill a file of their own and publish it with one rename, so readers see all of it or nothing, and two builds
that compute the same entry do no harm. Entries are never changed; the least recently used go when the cache
outgrows its limit. Losing the cache costs time, never correctness: an entry ends with the BLAKE3 of its key and
bytes, and one that a crash or a bad disk has damaged is dropped and computed again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from blake3 import blake3

logger = logging.getLogger(__name__)

LIMIT_BYTES = 32 << 30
"""Default size above which old entries are dropped; $PYC_CACHE_BYTES overrides it."""
READ_BYTES = 8 << 20
DIGEST_BYTES = 32
STALE_S = 24 * 3600
"""Age of a staged file that nobody can still be writing: its build was killed."""


def cache_directory() -> Path:
    """Return $PYC_CACHE_DIR, or "pyc" in $XDG_CACHE_HOME or ~/.cache."""
    if directory := os.environ.get("PYC_CACHE_DIR"):
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyc"


class Cache:
    """Entries of bytes by key (hex); `None` as directory turns the cache off. For use by several threads."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._lock = Lock()
        self.hits = 0
        self.misses = 0

    def stream(self, key: str, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the entry's bytes; when there is none, yield `pieces` and publish them once all were read.

        `pieces` is not touched on a hit. A write that fails (no space) only means no entry.
        """
        found = self._open(key)
        self._count(found)
        if found is not None:
            with found as file:
                yield from _blocks(file)
            return
        with contextlib.ExitStack() as stack:
            staged = self._stage(key, stack)
            for piece in pieces:
                if staged is not None and not _write(staged, piece):
                    staged = None
                yield piece
            if staged is not None:
                self._publish(key, staged)

    def get(self, key: str) -> bytes | None:
        """Return the entry's bytes, or None."""
        found = self._open(key)
        self._count(found)
        if found is None:
            return None
        with found as file:
            return b"".join(_blocks(file))

    def put(self, key: str, data: bytes) -> None:
        """Publish an entry."""
        with contextlib.ExitStack() as stack:
            staged = self._stage(key, stack)
            if staged is not None and _write(staged, data):
                self._publish(key, staged)

    def trim(self) -> None:
        """Drop the least recently used entries until the cache is within its limit, and what killed builds left."""
        if self._directory is None:
            return
        for path in self._directory.glob("staged-*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - STALE_S:
                    path.unlink()
        limit = _limit_bytes()
        entries: list[tuple[float, int, Path]] = []
        for path in self._directory.glob("entries/??/*"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size

    def _count(self, found: BinaryIO | None) -> None:
        with self._lock:
            if found is None:
                self.misses += 1
            else:
                self.hits += 1

    def _path(self, key: str) -> Path:
        assert self._directory is not None
        return self._directory / "entries" / key[:2] / key

    def _open(self, key: str) -> BinaryIO | None:
        if self._directory is None:
            return None
        path = self._path(key)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(path, "rb"))
                os.utime(file.fileno())
                intact = _is_intact(file, key)
            except OSError:
                return None
            if not intact:
                logger.warning("cache: entry %s is damaged; computing it again", path)
                with contextlib.suppress(OSError):
                    path.unlink()
                return None
            stack.pop_all()
            return file

    def _stage(self, key: str, stack: contextlib.ExitStack) -> _Staged | None:
        if self._directory is None:
            return None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._directory, prefix="staged-")
        except OSError as error:
            logger.warning("cache: %s; going on without", error)
            return None
        staged = _Staged(descriptor, Path(name), key)
        stack.callback(staged.discard)
        return staged

    def _publish(self, key: str, staged: _Staged) -> None:
        target = self._path(key)
        if not _written(staged, staged.hasher.digest()):
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged.path, target)
        except OSError as error:
            logger.warning("cache: %s; entry not kept", error)


class _Staged:
    """A file being filled; `discard` closes it and removes it if it was not published."""

    def __init__(self, descriptor: int, path: Path, key: str) -> None:
        self.descriptor = descriptor
        self.path = path
        self.hasher = blake3(key.encode())

    def discard(self) -> None:
        os.close(self.descriptor)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def _write(staged: _Staged, piece: bytes | memoryview) -> bool:
    staged.hasher.update(piece)
    return _written(staged, piece)


def _written(staged: _Staged, piece: bytes | memoryview) -> bool:
    view = memoryview(piece).cast("B")
    try:
        while view:
            view = view[os.write(staged.descriptor, view) :]
    except OSError as error:
        logger.warning("cache: %s; entry not kept", error)
        return False
    return True


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of an entry, without its digest, from the start of the file."""
    left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
    file.seek(0)
    while left > 0 and (block := file.read(min(READ_BYTES, left))):
        yield block
        left -= len(block)


def _is_intact(file: BinaryIO, key: str) -> bool:
    hasher = blake3(key.encode())
    for block in _blocks(file):
        hasher.update(block)
    return file.read(DIGEST_BYTES + 1) == hasher.digest()


def _limit_bytes() -> int:
    wanted = os.environ.get("PYC_CACHE_BYTES")
    if not wanted:
        return LIMIT_BYTES
    if not wanted.isdecimal():
        logger.warning("PYC_CACHE_BYTES is %r, expected a number of bytes; using %d", wanted, LIMIT_BYTES)
        return LIMIT_BYTES
    return int(wanted)
