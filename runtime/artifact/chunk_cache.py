"""Verified chunks of artifacts that came over a network, as files named by their digest.

    <cache>/chunks/<first two hex digits>/<BLAKE3 of the stored bytes>

All artifacts and processes share them, so another version of a model fetches only what changed. An entry is written
beside its place and renamed to it, and whoever reads one hashes it as if it had come from the network: a damaged entry
is removed and fetched again. A folder that cannot be written to is read all the same. `pyc cache` shows and prunes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from pathlib import Path

from pyc.runtime.artifact.format import Chunk
from pyc.runtime.host import unfinished
from pyc.runtime.host.cache_folder import ENTRY_MODE, cache_directory, limit_bytes, prune
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.temporary_files import create_locked

logger = logging.getLogger(__name__)

SWITCH = "PYC_CHUNK_CACHE"
_digest = re.compile(r"[0-9a-f]{64}")


class ChunkCache:
    """The entries below a folder. For several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_writable = True
        self._written_bytes = 0

    def has(self, chunk: Chunk) -> bool:
        """Whether there is an entry of the chunk's size: a look at the folder, not at its bytes."""
        try:
            status = self._path(chunk).lstat()
        except unless_signalled(OSError):
            return False
        return status.st_size == chunk.stored_bytes

    def read_into(self, chunk: Chunk, target: memoryview) -> bool:
        """Fill `target` with an entry, unverified; whether there was one that long."""
        try:
            descriptor = os.open(self._path(chunk), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except unless_signalled(OSError):
            return False
        try:
            try:
                os.utime(descriptor)
            except unless_signalled(OSError):  # of another user's, or read-only
                pass
            done = 0
            while done < len(target):
                count = os.preadv(descriptor, [target[done:]], done)
                if not count:
                    return False
                done += count
        except unless_signalled(OSError):
            return False
        finally:
            os.close(descriptor)
        return True

    def put(self, chunk: Chunk, stored: memoryview) -> None:
        """Keep a chunk that is verified. What fails (no space, read-only) is said once and costs nothing more."""
        if not self._is_writable:
            return
        path = self._path(chunk)
        staged: list[Path] = []

        def named() -> Path:
            staged.append(self._folder / f"staged-{secrets.token_hex(8)}")
            return staged[-1]

        def drop() -> None:
            for each in staged:
                each.unlink(missing_ok=True)

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.held(drop):
                try:
                    descriptor = create_locked(named, os.O_WRONLY, ENTRY_MODE)
                    try:
                        _write(descriptor, stored)
                        os.replace(staged[-1], path)
                    finally:
                        os.close(descriptor)
                finally:
                    drop()
            self._written_bytes += len(stored)
        except unless_signalled(OSError) as error:
            self._is_writable = False
            logger.warning("cache: %s: %s; chunks are not kept", self._folder, error.strerror)

    def drop(self, chunk: Chunk) -> None:
        """Remove an entry that is damaged."""
        logger.warning("cache: entry %s is damaged; fetching it again", self._path(chunk))
        with contextlib.suppress(OSError):
            self._path(chunk).unlink()

    def trim(self) -> None:
        """Drop the least recently used entries until the cache is within its limit, if anything was added."""
        if self._written_bytes:
            self._written_bytes = 0
            prune(self._folder, limit_bytes())

    def _path(self, chunk: Chunk) -> Path:
        assert _digest.fullmatch(chunk.blake3)
        return self._folder / "chunks" / chunk.blake3[:2] / chunk.blake3


def _write(descriptor: int, stored: memoryview) -> None:
    while stored:
        stored = stored[os.write(descriptor, stored) :]


def chunk_cache() -> ChunkCache | None:
    """Return the cache of this user; None where $PYC_CHUNK_CACHE is "off" or there is no folder for one."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        return None
    folder = cache_directory()
    return ChunkCache(folder) if folder is not None else None
