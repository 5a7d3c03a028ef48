"""Where an artifact's bytes come from: a local file, mapped or read.

`safe_open` is the only place of the runtime that opens a file somebody else named. A source knows its size
from the first `fstat`, so nothing is read beyond it; a later kind (HTTP ranges) fits the same protocol.

A mapping shares the page cache and costs no copy, but a file that another process truncates while it is
mapped kills the reader with SIGBUS; where that can happen (a network share, a file rewritten in place), read.
It asks for huge pages: what it is the first to read from disk, Linux then holds in such, where the file system can.
"""

import contextlib
import mmap
import os
import stat
from pathlib import Path
from typing import Literal, Protocol

from pyc.runtime.errors import ArtifactError

Mode = Literal["mmap", "pread"]


def safe_open(path: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None) -> tuple[int, int]:
    """Opens a regular file for reading and returns (file descriptor, size in bytes).

    With `root`, the file must lie inside that directory after symbolic links are resolved. Never blocks on a
    FIFO and never accepts a device or a directory. Raises ArtifactError.
    """
    place = Path(path)
    try:
        if root is not None:
            place = place.resolve(strict=True)
            if not place.is_relative_to(Path(root).resolve(strict=True)):
                raise ArtifactError(f"{path}: lies outside {root}")
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except ValueError as error:
        raise ArtifactError(f"{str(path)!r}: not a usable path: {error}") from error
    except OSError as error:
        raise ArtifactError(f"{place}: cannot be opened: {error.strerror}") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ArtifactError(f"{place}: not a regular file")
    return fd, status.st_size


class Source(Protocol):
    """Random access to bytes that do not change; the size is known from the start."""

    @property
    def size_bytes(self) -> int: ...

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target` from `offset`. Raises ArtifactError when the bytes end early."""

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """The bytes without a copy, read-only; None when this source has no mapping."""

    def close(self) -> None: ...


class ReadFile:
    """A file read with `pread` into private memory: what was verified is what is used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._fd, self.size_bytes = safe_open(path)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target` from `offset`; thread-safe."""
        if self._fd < 0:
            raise ArtifactError(f"{self._path}: already closed")
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._fd, [target[done:]], offset + done)
            except OSError as error:
                where = f"{self._path}: read failed at {offset + done}"
                raise ArtifactError(f"{where}: {error.strerror}") from error
            if count == 0:
                raise _too_short(self._path, os.fstat(self._fd).st_size, offset + len(target))
            done += count

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """None: this source has no mapping."""
        return None

    def close(self) -> None:
        """Closes the file; further reads raise ArtifactError."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MappedFile(ReadFile):
    """A file mapped read-only. Views stay valid after `close`: the mapping goes with the last of them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._view: memoryview | None = None
        if self.size_bytes:
            try:
                mapping = mmap.mmap(self._fd, self.size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            except OSError as error:
                self.close()
                raise ArtifactError(f"{self._path}: cannot be mapped: {error.strerror}") from error
            with contextlib.suppress(OSError):  # a kernel without huge pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
            self._view = memoryview(mapping)

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Bytes `[offset, offset + size_bytes)`, mapped. Raises ArtifactError beyond the file's end."""
        if self._view is None:
            raise ArtifactError(f"{self._path}: already closed, or empty")
        if offset + size_bytes > self.size_bytes:
            raise _too_short(self._path, self.size_bytes, offset + size_bytes)
        return self._view[offset : offset + size_bytes]

    def close(self) -> None:
        """Closes the file and drops this object's view of it."""
        super().close()
        self._view = None


def _too_short(path: str, size_bytes: int, expected_bytes: int) -> ArtifactError:
    return ArtifactError(f"{path}: ends at {size_bytes}, expected {expected_bytes} bytes")


def open_source(path: str | os.PathLike[str], mode: Mode) -> Source:
    """A local file as a source; `mode` is "mmap" or "pread"."""
    return MappedFile(path) if mode == "mmap" else ReadFile(path)
