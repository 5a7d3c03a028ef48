"""The build cache: files named by the digest of everything that went into them.

Writers fill a file of their own and publish it with one rename, so readers see all of it or nothing, and two builds
that compute the same entry do no harm. Entries are never changed; the least recently used go when the cache
outgrows its limit. Losing the cache costs time, never correctness: an entry ends with the BLAKE3 of its key and
bytes, and one that a crash or a bad disk has damaged is dropped and computed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from blake3 import blake3

from pyc.runtime.host import unfinished
from pyc.runtime.host.home import open_regular, user_home

logger = logging.getLogger(__name__)

LIMIT_BYTES = 32 << 30
"""Default size above which old entries are dropped; $PYC_CACHE_BYTES overrides it."""
MOST_DIGITS = 18
READ_BYTES = 8 << 20
DIGEST_BYTES = 32
STALE_S = 24 * 3600
"""Age of a staged file that nobody can still be writing, where the file system has no locks to tell."""

# What is removed has one of these names: $PYC_CACHE_DIR may be a folder with files of its owner's.
_entry_name = re.compile(r"[0-9a-f]{64}")
_staged_name = re.compile(r"staged-[0-9a-f]{16}")
_set_aside_name = re.compile(r"zig-damaged-[0-9a-f]{8}")
_ZIG_NAMES = frozenset("bchopz") | {"tmp"}


def cache_directory() -> Path | None:
    """Return $PYC_CACHE_DIR, or "pyc" in $XDG_CACHE_HOME or ~/.cache; None where there is no home directory."""
    if directory := os.environ.get("PYC_CACHE_DIR"):
        return Path(directory).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "pyc"
    home = user_home()
    return home / ".cache" / "pyc" if home else None


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
        if counts:
            self._count(found)
        if found is None:
            return None
        with found as file:
            return b"".join(_blocks(file))

    def put(self, key: str, data: bytes) -> None:
        """Publish an entry."""
        with contextlib.ExitStack() as stack:
            staged = self._stage(key, stack)
            if staged is not None:
                staged.hasher.update(data)
                if self._written(staged, data):
                    self._publish(key, staged)

    def trim(self) -> None:
        """Drop the least recently used entries until the cache is within its limit, and what killed builds left."""
        if self.directory is not None:
            prune(self.directory, limit_bytes())

    def _count(self, found: BinaryIO | None) -> None:
        with self._lock:
            if found is None:
                self.misses += 1
            else:
                self.hits += 1

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
                _remove(path)
                return None
            if not intact:
                logger.warning("cache: entry %s is damaged; computing it again", path)
                _remove(path)
                return None
            stack.pop_all()
            return file

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
        self.path = directory / f"staged-{secrets.token_hex(8)}"
        self._descriptor = -1
        self.hasher = blake3(key.encode())

    def open(self) -> None:
        with unfinished.making():
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

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


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What is in a cache: its entries, zig's own cache, and files and folders that killed builds left."""

    entries: int
    entry_bytes: int
    zig_bytes: int
    leftovers: int


def measure(directory: Path) -> CacheSize:
    """Return what is in the cache at `directory`, which need not exist."""
    entries = _entries(directory)
    zig = directory / "zig"
    walked = os.walk(zig) if is_zig_cache(zig) else ()
    zig_bytes = sum(_size(Path(root) / name) for root, _, names in walked for name in names)
    return CacheSize(len(entries), sum(size for _, size, _ in entries), zig_bytes, len(_abandoned(directory)))


def is_zig_cache(folder: Path) -> bool:
    """Whether `folder` holds nothing but what zig's cache has, so that it may be removed; a user's may be called so."""
    try:
        return not folder.is_symlink() and _ZIG_NAMES.issuperset(os.listdir(folder))
    except OSError:
        return False


def prune(directory: Path, limit: int) -> tuple[int, int]:
    """Drop the least recently used entries until the rest is within `limit` bytes, and what killed builds left.

    Returns how many entries were dropped and their size in bytes.
    """
    sweep_staged(directory)
    entries = _entries(directory)
    total = sum(size for _, size, _ in entries)
    count = dropped_bytes = 0
    for _, size, path in sorted(entries):
        if total <= limit:
            break
        if _remove(path):
            total -= size
            count, dropped_bytes = count + 1, dropped_bytes + size
    return count, dropped_bytes


def sweep_staged(directory: Path) -> int:
    """Remove what killed builds left in the cache at `directory`; returns how many files and folders that were."""
    return sum(_remove(path) for path in _abandoned(directory))


def _abandoned(directory: Path) -> list[Path]:
    """Return staged files that no build holds, and zig's folders on their way out."""
    found = [path for path in directory.glob("zig-damaged-*") if _set_aside_name.fullmatch(path.name)]
    for path in directory.glob("staged-*"):
        if not _staged_name.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError), open_regular(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:  # a file system without locks
                if os.fstat(file.fileno()).st_mtime > time.time() - STALE_S:
                    continue
            found.append(path)
    return found


def _entries(directory: Path) -> list[tuple[float, int, Path]]:
    entries: list[tuple[float, int, Path]] = []
    for path in directory.glob("entries/??/*"):
        if not _entry_name.fullmatch(path.name) or path.parent.name != path.name[:2]:
            continue
        with contextlib.suppress(OSError):
            status = path.lstat()
            entries.append((status.st_mtime, status.st_size, path))
    return entries


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def _remove(path: Path) -> bool:
    """Remove what lies at `path`, be it a folder; returns whether it is gone."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return not os.path.lexists(path)


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


def limit_bytes() -> int:
    """Return the size that the cache may have: $PYC_CACHE_BYTES, or LIMIT_BYTES."""
    wanted = os.environ.get("PYC_CACHE_BYTES")
    if not wanted:
        return LIMIT_BYTES
    if not wanted.isdecimal() or len(wanted) > MOST_DIGITS:
        shown = wanted if len(wanted) <= MOST_DIGITS else f"{wanted[:MOST_DIGITS]}..."
        logger.warning(
            "PYC_CACHE_BYTES is %r, expected a number of bytes of at most %d digits; using %d",
            shown,
            MOST_DIGITS,
            LIMIT_BYTES,
        )
        return LIMIT_BYTES
    return int(wanted)
