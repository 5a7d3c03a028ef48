"""The folder of caches: what is in it, and making it smaller.

    <cache>/entries/<xx>/<key>      parts of builds (pyc.compiler.files.cache)
    <cache>/chunks/<xx>/<digest>    chunks of artifacts that came over a network (pyc.runtime.artifact.chunk_cache)
    <cache>/zig-2/                  the compiler's own (zig/: of versions that let the user's CPATH into it)
    <cache>/staged-*                files on their way, locked by who writes them

Entries are never changed; the least recently used go when all of them together outgrow the limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyc.runtime.host.home import open_regular, user_home
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.sizes import EXPECTED, human_bytes, parse_size

logger = logging.getLogger(__name__)

LIMIT_BYTES = 32 << 30
"""Default size above which old entries are dropped; $PYC_CACHE_BYTES, a size such as 10GB, overrides it."""
MOST_SHOWN = 18
ENTRY_MODE = 0o666
"""Of entries, from which the umask takes: other users may read them, as they may read artifacts."""
STALE_S = 24 * 3600
"""Age of a staged file that nobody can still be writing, where the file system has no locks to tell."""

# What is removed has one of these names: $PYC_CACHE_DIR may be a folder with files of its owner's.
_entry_name = re.compile(r"[0-9a-f]{64}")
_staged_name = re.compile(r"staged-[0-9a-f]{16}")
_set_aside_name = re.compile(r"zig-damaged-[0-9a-f]{8}")
_ZIG_NAMES = frozenset("bchopz") | {"tmp"}

ZIG_FOLDER = "zig-2"
"""Where zig keeps its own cache; another name whenever what earlier versions of pyc left there must not be used."""
_FORMER_ZIG_FOLDERS = ("zig",)


def cache_directory() -> Path | None:
    """Return $PYC_CACHE_DIR, or "pyc" in $XDG_CACHE_HOME or ~/.cache; None where there is no home directory."""
    if directory := os.environ.get("PYC_CACHE_DIR"):
        return Path(directory).absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "pyc"
    home = user_home()
    return home / ".cache" / "pyc" if home else None


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What is in a cache: entries of builds, chunks of artifacts, zig's own cache, and what killed processes left.

    `unreadable` is how many entries and chunks this user may not read.
    """

    entries: int
    entry_bytes: int
    chunks: int
    chunk_bytes: int
    zig_bytes: int
    leftovers: int
    unreadable: int


def measure(directory: Path) -> CacheSize:
    """Return what is in the cache at `directory`, which need not exist."""
    entries, chunks = _entries(directory, "entries"), _entries(directory, "chunks")
    walked = (entry for zig in zig_caches(directory) for entry in os.walk(zig))
    return CacheSize(
        entries=len(entries),
        entry_bytes=sum(size for _, size, _ in entries),
        chunks=len(chunks),
        chunk_bytes=sum(size for _, size, _ in chunks),
        zig_bytes=sum(_size(Path(root) / name) for root, _, names in walked for name in names),
        leftovers=sum(1 for _ in _abandoned(directory)),
        unreadable=sum(not os.access(path, os.R_OK) for _, _, path in (*entries, *chunks)),
    )


def zig_caches(directory: Path) -> list[Path]:
    """Return zig's caches in the cache at `directory`, those of earlier versions of pyc among them."""
    folders = (directory / name for name in (ZIG_FOLDER, *_FORMER_ZIG_FOLDERS))
    return [folder for folder in folders if is_zig_cache(folder)]


def is_zig_cache(folder: Path) -> bool:
    """Whether `folder` holds nothing but what zig's cache has, so that it may be removed; a user's may be called so."""
    try:
        return not folder.is_symlink() and _ZIG_NAMES.issuperset(os.listdir(folder))
    except unless_signalled(OSError):
        return False


class Pruned(NamedTuple):
    """How many entries were dropped, their bytes, and those of the rest, without what came meanwhile."""

    entries: int
    dropped_bytes: int
    kept_bytes: int


def prune(directory: Path, limit: int) -> Pruned:
    """Drop the least recently used entries until the rest is within `limit` bytes, and what killed builds left."""
    sweep_staged(directory)
    entries = [*_entries(directory, "entries"), *_entries(directory, "chunks")]
    total = sum(size for _, size, _ in entries)
    count = dropped_bytes = 0
    for _, size, path in sorted(entries):
        if total <= limit:
            break
        if remove(Path(path)):
            total -= size
            count, dropped_bytes = count + 1, dropped_bytes + size
    return Pruned(count, dropped_bytes, total)


def sweep_staged(directory: Path) -> int:
    """Remove what killed processes left in the cache at `directory`; returns how many files and folders that were."""
    return sum(remove(path) for path in _abandoned(directory))


def _abandoned(directory: Path) -> Iterator[Path]:
    """Yield staged files that nobody holds, each locked meanwhile, and zig's folders on their way out."""
    yield from (path for path in _found(directory, "zig-damaged-*") if _set_aside_name.fullmatch(path.name))
    for path in _found(directory, "staged-*"):
        if not _staged_name.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError), open_regular(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except unless_signalled(OSError):  # a file system without locks
                if os.fstat(file.fileno()).st_mtime > time.time() - STALE_S:
                    continue
            yield path


def _found(directory: Path, pattern: str) -> Iterator[Path]:
    """Yield what matches, as far as this user may look."""
    with contextlib.suppress(OSError):
        yield from directory.glob(pattern)


def _entries(directory: Path, kind: str) -> list[tuple[float, int, str]]:
    """Time of use, size and path of each; there may be many thousands."""
    entries: list[tuple[float, int, str]] = []
    for folder in _found(directory, f"{kind}/??"):
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                if _entry_name.fullmatch(entry.name) and entry.name.startswith(folder.name):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except unless_signalled(FileNotFoundError):
                        continue
                    entries.append((status.st_mtime, status.st_size, entry.path))
    return entries


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0


def remove(path: Path) -> bool:
    """Remove what lies at `path`, be it a folder; returns whether it is gone."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    return not os.path.lexists(path)


def limit_bytes() -> int:
    """Return the size that the cache may have: $PYC_CACHE_BYTES, or LIMIT_BYTES."""
    wanted = os.environ.get("PYC_CACHE_BYTES")
    if not wanted:
        return LIMIT_BYTES
    size_bytes = parse_size(wanted)
    if size_bytes is None:
        shown = wanted if len(wanted) <= MOST_SHOWN else f"{wanted[:MOST_SHOWN]}..."
        logger.warning("PYC_CACHE_BYTES is %r, expected %s; using %s", shown, EXPECTED, human_bytes(LIMIT_BYTES))
        return LIMIT_BYTES
    return size_bytes
