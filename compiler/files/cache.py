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
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from blake3 import blake3

from pyc.runtime.host import unfinished
from pyc.runtime.host.cache_folder import ENTRY_MODE, limit_bytes, prune, remove, sweep_staged
from pyc.runtime.host.home import open_regular
from pyc.runtime.host.temporary_files import create_locked

logger = logging.getLogger(__name__)

READ_BYTES = 8 << 20
DIGEST_BYTES = 32


class Cache:
    """Entries of bytes by key (hex); `None` as directory turns the cache off. For use by several threads."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._lock = Lock()
        self._has_warned = False
        self._is_swept = False
        self.hits = 0
        self.misses = 0

    def stream(self, key: str, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield the entry's bytes; when there is none, yield `pieces` and publish them once all were read.

        `pieces` is not touched on a hit. A write that fails (no space) only means no entry. Raises OSError for an entry
        that was right a moment ago and can no longer be read.
        """
        found = self.opened(key)
        yield from self.kept(key, pieces) if found is None else found

    def opened(self, key: str, *, counts: bool = True) -> Iterator[bytes] | None:
        """Return the bytes of an entry, whole and verified, or None; what is published later changes nothing."""
        found = self._open(key)
        if counts:
            self._count(found)
        return None if found is None else _closing(found)

    def kept(self, key: str, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """Yield `pieces`, and publish them as an entry once all were read."""
        with contextlib.ExitStack() as stack:
            staged = self._stage(key, stack)
            for piece in pieces:
                if staged is not None:
                    staged.hasher.update(piece)
                    if not self._written(staged, piece):
                        staged = None
                yield piece
            if staged is not None:
                self._publish(key, staged)

    def get(self, key: str, *, counts: bool = True) -> bytes | None:
        """Return the entry's bytes, or None. What is no part of an artifact does not count among hits and misses."""
        found = self._open(key)
        data = None if found is None else self._read(found, key)
        if counts:
            self.count(is_hit=data is not None)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Publish an entry."""
        with contextlib.ExitStack() as stack:
            staged = self._stage(key, stack)
            if staged is not None:
                staged.hasher.update(data)
                if self._written(staged, data):
                    self._publish(key, staged)

    def has(self, key: str) -> bool:
        """Return whether there is an entry, be it damaged; nothing is read."""
        return self.directory is not None and self._path(key).is_file()

    def remove(self, key: str) -> None:
        """Drop an entry, if there is one."""
        if self.directory is not None:
            remove(self._path(key))

    def count(self, *, is_hit: bool) -> None:
        """Count a lookup that another cache has answered."""
        with self._lock:
            self.hits, self.misses = self.hits + is_hit, self.misses + (not is_hit)

    @contextlib.contextmanager
    def counting_apart(self) -> Iterator[None]:
        """Have hits and misses count from 0 in the context, as of a build inside another; then they are as before."""
        before = self.hits, self.misses
        self.hits = self.misses = 0
        try:
            yield
        finally:
            self.hits, self.misses = before

    def trim(self) -> None:
        """Drop the least recently used entries until the cache is within its limit, and what killed builds left."""
        if self.directory is not None:
            prune(self.directory, limit_bytes())

    def _count(self, found: BinaryIO | None) -> None:
        self.count(is_hit=found is not None)

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / "entries" / key[:2] / key

    def _open(self, key: str) -> BinaryIO | None:
        if self.directory is None:
            return None
        path = self._path(key)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open_regular(path))
                with contextlib.suppress(OSError):  # a cache that is only read
                    os.utime(file.fileno())
                intact = _is_intact(file, key)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                self._warn(f"{path}: {error.strerror}; computing it again")
                remove(path)
                return None
            if not intact:
                self._drop_damaged(key)
                return None
            stack.pop_all()
            return file

    def _read(self, file: BinaryIO, key: str) -> bytes | None:
        """The bytes of an entry that was right a moment ago, looked at again: another process may write to it."""
        try:
            with file:
                data = b"".join(_blocks(file))
                if blake3(key.encode()).update(data).digest() == file.read(DIGEST_BYTES + 1):
                    return data
        except OSError as error:
            self._warn(f"{self._path(key)}: {error.strerror}; computing it again")
            return None
        self._drop_damaged(key)
        return None

    def _drop_damaged(self, key: str) -> None:
        logger.warning("cache: entry %s is damaged; computing it again", self._path(key))
        remove(self._path(key))

    def _stage(self, key: str, stack: contextlib.ExitStack) -> _Staged | None:
        if self.directory is None:
            return None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not self._is_swept:
                self._is_swept = True
                sweep_staged(self.directory)
            staged = _Staged(self.directory, key)
            stack.callback(staged.discard)
            stack.enter_context(unfinished.held(staged.unlink))
            staged.open()
        except OSError as error:
            self._warn(f"{error}; going on without")
            return None
        return staged

    def _warn(self, message: str) -> None:
        """Say once for all entries why the cache does not help: what it has to do with one has to do with all."""
        with self._lock:
            if self._has_warned:
                return
            self._has_warned = True
        logger.warning("cache: %s", message)

    def _written(self, staged: _Staged, piece: bytes | memoryview) -> bool:
        try:
            staged.write(piece)
        except OSError as error:
            self._warn(f"{self.directory}: {error.strerror}; entry not kept")
            return False
        return True

    def _publish(self, key: str, staged: _Staged) -> None:
        target = self._path(key)
        if not self._written(staged, staged.hasher.digest()):
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged.path, target)
        except OSError as error:
            self._warn(f"{error}; entry not kept")


class _Staged:
    """A file being filled, locked by its owner; `discard` closes it and removes it if it was not published."""

    def __init__(self, directory: Path, key: str) -> None:
        self.path = self._directory = directory
        self._descriptor = -1
        self.hasher = blake3(key.encode())

    def open(self) -> None:
        """Make the file and lock it. Raises OSError."""
        self._descriptor = create_locked(self._named, os.O_RDWR, ENTRY_MODE)

    def _named(self) -> Path:
        self.path = self._directory / f"staged-{secrets.token_hex(8)}"
        return self.path

    def write(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece).cast("B")
        while view:
            view = view[os.write(self._descriptor, view) :]

    def unlink(self) -> None:
        self.path.unlink(missing_ok=True)

    def discard(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            self.unlink()


def _closing(file: BinaryIO) -> Iterator[bytes]:
    with file:
        yield from _blocks(file)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of an entry, without its digest, from the start of the file."""
    left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
    file.seek(0)
    while left > 0 and (block := file.read(min(READ_BYTES, left))):
        yield block
        left -= len(block)


def _is_intact(file: BinaryIO, key: str) -> bool:
    size = os.fstat(file.fileno()).st_size
    if size < DIGEST_BYTES or not any(os.pread(file.fileno(), DIGEST_BYTES, size - DIGEST_BYTES)):
        return False  # no digest is all zeros, but the end of a file that was made longer is, be it by terabytes
    hasher = blake3(key.encode())
    for block in _blocks(file):
        hasher.update(block)
    return file.read(DIGEST_BYTES + 1) == hasher.digest()
