"""A local file as a source, mapped or read.

`safe_open` is the only place of the runtime that opens a file somebody else named. A source knows its size
from the first `fstat`, so nothing is read beyond it.

A mapping shares the page cache and costs no copy, but who touches a page that another process has cut off the file
gets SIGBUS. So only compiled code reads it, under a guard (executors/guard.py), and what is overwritten in place is
found by the file's time of writing (`HeldFile`); where files are rewritten like that, read.
It asks for huge pages: what it is the first to read from disk, Linux then holds in such, where the file system can.
"""

import io
import mmap
import os
import stat
from pathlib import Path

from pyc.runtime.errors import ArtifactError, MissingArtifactError
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.protocol import Mode, Source


def safe_open(path: str | os.PathLike[str], *, root: str | os.PathLike[str] | None = None) -> tuple[int, int]:
    """Open a regular file for reading and return (file descriptor, size in bytes).

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
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingArtifactError(f"{place}: cannot be opened: {error.strerror}") from error
    except PermissionError as error:
        remedy = "let this user read it (chmod a+r), and enter its folders (a+x)"
        raise ArtifactError(f"{place}: cannot be opened: {error.strerror}; {remedy}") from error
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"{place}: cannot be opened: {error.strerror}") from error
    try:
        status = _status(fd, place)
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError(f"{place}: not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd, status.st_size


def _status(fd: int, place: str | os.PathLike[str]) -> os.stat_result:
    """What the open file is. Raises ArtifactError: a network share may be gone."""
    try:
        return os.fstat(fd)
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"{place}: cannot be read: {error.strerror}") from error


class HeldFile:
    """A mapped file that stays open after its source is closed, to tell whether somebody writes to it.

    `view` is all of it, mapped; `descriptor` is open until `close`.
    """

    def __init__(self, path: str, descriptor: int, view: memoryview, written: tuple[int, int]) -> None:
        self.path, self.descriptor, self.view = path, descriptor, view
        self._written = written

    def check(self) -> None:
        """Raise ArtifactError when the file has been cut or written to since it was opened.

        A file that another was renamed over is as it was, so artifacts may be replaced like that while they run.
        """
        try:
            written = _written(os.fstat(self.descriptor))
        except unless_signalled(OSError) as error:  # a network share that is gone
            raise self.changed(f"not readable any more ({error.strerror})") from error
        if written != self._written:
            raise self.changed("cut or overwritten")

    def changed(self, how: str) -> ArtifactError:
        """The error of a file that is not what it was."""
        return ArtifactError(
            f"{self.path}: {how} while it was in use: load it again; replace artifacts by renaming another over them, "
            "or run with --no-mmap (mode 'pread')"
        )

    def close(self) -> None:
        """Close the file; the mapping stays until its last view is gone."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class ReadFile:
    """A file read with `pread` into private memory: what was verified is what is used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._fd, self.size_bytes = safe_open(path)
        self._file = io.FileIO(self._fd)  # which closes it where nobody does: an interruption came before
        self._written = _written(_status(self._fd, self._path))

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`; thread-safe."""
        if self._fd < 0:
            raise ArtifactError(f"{self._path}: already closed")
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._fd, [target[done:]], offset + done)
            except unless_signalled(OSError) as error:
                where = f"{self._path}: read failed at {offset + done}"
                raise ArtifactError(f"{where}: {error.strerror}") from error
            if count == 0:
                raise _too_short(self._path, os.fstat(self._fd).st_size, offset + len(target))
            done += count

    def expect(self, size_bytes: int) -> None:
        """Nothing: the size is known."""

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """None: this source has no mapping."""
        return None

    def hold(self) -> HeldFile | None:
        """None: this source has no mapping."""
        return None

    def close(self) -> None:
        """Close the file; further reads raise ArtifactError."""
        self._fd = -1
        self._file.close()

class MappedFile(ReadFile):
    """A file mapped read-only. Views stay valid after `close`: the mapping goes with the last of them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._view: memoryview | None = None
        if self.size_bytes:
            try:
                mapping = mmap.mmap(self._fd, self.size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            except unless_signalled(OSError) as error:
                self.close()
                raise ArtifactError(f"{self._path}: cannot be mapped: {error.strerror}") from error
            try:
                mapping.madvise(mmap.MADV_HUGEPAGE)
            except unless_signalled(OSError):  # a kernel without huge pages
                pass
            self._view = memoryview(mapping)

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """Bytes `[offset, offset + size_bytes)`, mapped. Raises ArtifactError beyond the file's end."""
        if self._view is None:
            raise ArtifactError(f"{self._path}: already closed, or empty")
        if offset + size_bytes > self.size_bytes:
            raise _too_short(self._path, self.size_bytes, offset + size_bytes)
        return self._view[offset : offset + size_bytes]

    def hold(self) -> HeldFile | None:
        """The file as it was when it was opened. Raises ArtifactError when the process has no descriptor left."""
        if self._view is None:
            return None
        try:
            descriptor = os.dup(self._fd)
        except unless_signalled(OSError) as error:
            raise ArtifactError(f"{self._path}: cannot be kept open: {error.strerror}") from error
        return HeldFile(self._path, descriptor, self._view, self._written)

    def close(self) -> None:
        """Close the file and drop this object's view of it."""
        super().close()
        self._view = None


def _written(status: os.stat_result) -> tuple[int, int]:
    """What changes when a file is written to. Not the time of its status, which a rename over the file changes."""
    return status.st_size, status.st_mtime_ns


def _too_short(path: str, size_bytes: int, expected_bytes: int) -> ArtifactError:
    return ArtifactError(f"{path}: ends at {size_bytes}, expected {expected_bytes} bytes")


def open_file(path: str | os.PathLike[str], mode: Mode) -> Source:
    """A local file as a source; `mode` is "mmap" or "pread"."""
    return MappedFile(path) if mode == "mmap" else ReadFile(path)
