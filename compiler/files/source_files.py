"""The files that a build reads, each opened once: what was hashed is what is read (ADR 18).

Ingest opens a file; its header, its digest and every row of its tensors come through that one descriptor, so a file
that is renamed over or deleted meanwhile is never mixed with the one that takes its name. Writing into the file itself
shows as another size, modification time or change time of the inode: `check` compares them with those at the opening,
and the build calls it before a cache entry that weights go into is published, and before the artifact is.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from blake3 import blake3

from pyc.runtime.errors import IngestError
from pyc.runtime.host.files_read import note_file
from pyc.runtime.host.open_files import allow_open_files, raise_open_files_limit

READ_BYTES = 8 << 20
FIRST_COMPARED_BYTES = 64 << 10
"""Matrices that differ mostly do so in their first rows."""

_TICK_S = 0.012
_COARSE_TICK_S = 1.1
"""Longer than a step of the clock that stamps files: the kernel's timer, or a second in old file systems."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a file cannot keep when it is written to: nobody can set the change time."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


@dataclass(slots=True)
class _Open:
    descriptor: int
    identity: _Identity
    digest: str | None = None
    read_bytes: int = 0
    """How far into the file something was read."""


@dataclass(frozen=True, slots=True)
class Extent:
    """`size_bytes` bytes of a file at `offset`."""

    path: str
    offset: int
    size_bytes: int


class SourceFiles:
    """Open files by path, for use by several threads; a context manager that closes them all.

    A path is opened when it is first asked for. Methods raise OSError when that fails, as for a pipe, a device or a
    folder, and IngestError when a file is not what it was when it was opened.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        """`is_quiet`: `warn` says nothing, for who looks at files that are read again behind it."""
        self._files: dict[str, _Open] = {}
        self._warned: set[str] = set()
        self._is_quiet = is_quiet
        self._compared: dict[tuple[Extent, Extent], bool] = {}
        self._own: list[str] = []
        self._resolved: dict[Path, Path] = {}
        self._lock = Lock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every file; safe to call again."""
        with self._lock:
            self._is_closed = True
            while self._files:
                _, file = self._files.popitem()
                os.close(file.descriptor)

    def warn(self, logger: logging.Logger, text: str, *values: object) -> None:
        """Log a warning about the files that are open; of each text one, however often a build reads a model."""
        said = text % values
        if said not in self._warned and not self._is_quiet:
            self._warned.add(said)
            logger.warning("%s", said, stacklevel=2)

    @contextlib.contextmanager
    def owning(self, folder: Path) -> Iterator[None]:
        """Take the files in `folder`, in the context, to be the build's own, which no other machine has; then close
        them."""
        own = os.path.join(folder, "")
        self._own.append(own)
        try:
            yield
        finally:
            with self._lock:
                self._own.remove(own)
                for path in [path for path in self._files if path.startswith(own)]:
                    os.close(self._files.pop(path).descriptor)

    def is_own(self, path: str) -> bool:
        """Return whether a file is the build's own."""
        return path.startswith(tuple(self._own))

    def resolved(self, path: Path) -> Path:
        """Return a path without symbolic links, as it was when it was first asked for: a link may lead elsewhere now.

        A relative path is the absolute one that it stands for, under which a reference of a gate asks for it.
        """
        return self._resolved.setdefault(path.absolute(), path.resolve())

    def size_bytes(self, path: str) -> int:
        """Return the size of a file when it was opened."""
        return self._open(path).identity.size_bytes

    def read(self, path: str) -> bytes:
        """Return the bytes of a file; their digest is kept."""
        file = self._open(path)
        buffer = bytearray(file.identity.size_bytes)
        got = self._read_into(file, memoryview(buffer), 0)
        if got < len(buffer):
            raise IngestError(_changed(path, file.identity, _identity(file.descriptor)))
        data = bytes(buffer)
        file.digest = blake3(data).hexdigest()
        return data

    def read_into(self, path: str, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` with the bytes from `offset` on and return how many there were."""
        return self._read_into(self._open(path), buffer, offset)

    def digest(self, path: str) -> str:
        """Return the BLAKE3 of a file's bytes, in hex; those that `read` returned are not read again.

        Read in blocks, because a mapping counts as memory, and hashed on this thread: those that BLAKE3 would start
        are missing after a fork, and it waits for them; where none can be started it panics.
        """
        file = self._open(path)
        if file.digest is None:
            hasher = blake3()
            for block in self.whole(path):
                hasher.update(block)
            file.digest = hasher.hexdigest()
        return file.digest

    def whole(self, path: str) -> Iterator[memoryview]:
        """Yield the bytes of a file in blocks of READ_BYTES; each is there until the next."""
        file = self._open(path)
        block, offset = memoryview(bytearray(READ_BYTES)), 0
        while got := self._read_into(file, block, offset):
            yield block[:got]
            offset += got

    def has_digest(self, path: str) -> bool:
        """Return whether the digest of a file is known, or would have to be read for."""
        return self._open(path).digest is not None

    def read_bytes(self, path: str) -> int:
        """Return how far into a file something was read through this."""
        return self._open(path).read_bytes

    def adopt(self, path: str, digest: str) -> None:
        """Take the digest of a file from who has hashed it, and has shown that it is this one."""
        self._open(path).digest = digest

    def are_same(self, one: Extent, other: Extent) -> bool:
        """Return whether two stretches of files have the same bytes; they are read up to the first difference, once."""
        known = self._compared.get((one, other))
        if known is None:
            known = self._compared[one, other] = self._compare(one, other)
        return known

    def _compare(self, one: Extent, other: Extent) -> bool:
        if one.size_bytes != other.size_bytes:
            return False
        size = FIRST_COMPARED_BYTES
        done = 0
        while done < one.size_bytes:
            size = min(size, one.size_bytes - done)
            blocks = [memoryview(bytearray(size)) for _ in range(2)]
            for extent, block in zip((one, other), blocks, strict=True):
                if self.read_into(extent.path, block, extent.offset + done) < size:
                    self.check((extent.path,))
                    raise IngestError(f"{extent.path}: the file ends before its tensors do")
            if blocks[0].obj != blocks[1].obj:
                return False
            done, size = done + size, READ_BYTES
        return True

    def check(self, paths: Iterable[str] | None = None) -> None:
        """Raise IngestError when a file (of `paths`, or of all) is not as it was when it was opened."""
        for path in list(self._files) if paths is None else paths:
            file = self._open(path)
            found = _identity(file.descriptor)
            if found != file.identity:
                raise IngestError(_changed(path, file.identity, found))

    def _read_into(self, file: _Open, buffer: memoryview, offset: int) -> int:
        done = 0
        while done < len(buffer) and (got := os.preadv(file.descriptor, [buffer[done:]], offset + done)):
            done += got
        file.read_bytes = max(file.read_bytes, offset + done)
        return done

    def _open(self, path: str) -> _Open:
        with self._lock:
            assert not self._is_closed, f"{path} is read after the build"
            found = self._files.get(path)
            if found is None:
                allow_open_files(len(self._files) + 1)
                found = self._files[path] = _open_file(path)
                if not self.is_own(path):
                    note_file(path, "a source")
            return found


def _open_file(path: str) -> _Open:
    """A file that is opened, with a higher limit of open files where it takes one."""
    try:
        return _open_once(path)
    except OSError as error:
        if error.errno != errno.EMFILE or not raise_open_files_limit():
            raise
    return _open_once(path)


def _open_once(path: str) -> _Open:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        _outwait(_identity(descriptor).changed_ns)
        return _Open(descriptor, _identity(descriptor))
    except BaseException:
        os.close(descriptor)
        raise


def _outwait(changed_ns: int) -> None:
    """Wait until a change that comes now would get another time than the last one, `changed_ns`."""
    tick_s = _TICK_S if changed_ns % 1_000_000_000 else _COARSE_TICK_S
    left_s = tick_s - abs(time.time_ns() - changed_ns) / 1e9
    if left_s > 0:
        time.sleep(left_s)


def _identity(descriptor: int) -> _Identity:
    status = os.fstat(descriptor)
    return _Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _changed(path: str, before: _Identity, now: _Identity) -> str:
    if now.size_bytes != before.size_bytes:
        what = f"it had {before.size_bytes} bytes and now has {now.size_bytes}"
    elif now.modified_ns != before.modified_ns:
        what = "it was written to"
    else:
        what = "it was written to, replaced, deleted, or given other permissions"
    return (
        f"{path}: the file changed while the build read it: {what}; nothing was kept: "
        "build again when nothing else writes there"
    )
