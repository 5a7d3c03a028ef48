"""A file that appears whole under its final name, or not at all.

Where the file system can, the bytes go to an unnamed file (O_TMPFILE), so a killed process leaves nothing.
Otherwise they go to a file with a temporary name beside the target (`runtime.host.temporary_files`). Either way the
owner holds a lock on the file, and the next writer of the same target removes what a dead owner left.

What is appended reaches the system in whole pieces of PIECE_BYTES, at multiples of it: Linux then holds the file in
pages of that size, and whoever maps it finds them so (docs/lab/experiments.md).
"""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.limits import limit_remedy
from pyc.runtime.host.temporary_files import create, lock, sweep, sync_folder, temporary_path

BLOCK_BYTES = 8 << 20
PIECE_BYTES = 2 << 20
"""A huge page of x86-64, and of aarch64 with pages of 4 KB."""
SPACE_MARGIN_BYTES = 1 << 20


class StagedFile:
    """Bytes appended in order, then published under `path`; a context manager, ended by `publish`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        expected_bytes: int = 0,
        allowed: Callable[[], None] = lambda: None,
        is_artifact: bool = False,
    ) -> None:
        """Open the staging file. `allowed` is called now and just before the rename, and raises when `path` may not
        be replaced. Raises ArtifactError when the place is unusable or has too little space.

        What the system refuses here and below, as a full disk does, is an ArtifactError of what `is_artifact`, and an
        OSError of other files: whoever tells them apart by exit codes takes neither for a bad artifact."""
        self.path = Path(path)
        self._is_artifact = is_artifact
        self._allowed = allowed
        self.size_bytes = 0
        self._held = bytearray()  # the last bytes appended, less than a piece
        self._named = False
        self._fd = -1
        try:
            self._check_place(expected_bytes)
            self._temporary = temporary_path(self.path)
            sweep(self.path)
            self._open()
        except OSError as error:
            self.discard()
            raise self._failed(error) from error
        except BaseException:
            self.discard()
            raise

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`. Raises ArtifactError or OSError, for instance when the disk is full."""
        view = memoryview(data)
        while len(view):
            end = self.size_bytes
            if not self._held and len(view) >= PIECE_BYTES:
                taken = len(view) // PIECE_BYTES * PIECE_BYTES
                self._write_at(end, view[:taken])
            else:
                taken = min(PIECE_BYTES - len(self._held), len(view))
                self._held += view[:taken]
            self.size_bytes += taken
            view = view[taken:]
            if len(self._held) == PIECE_BYTES:
                self._flush()

    def _flush(self) -> None:
        """Write what is held."""
        if self._held:
            held, self._held = self._held, bytearray()
            self._write_at(self.size_bytes - len(held), memoryview(held))

    def insert_front(self, front: bytes) -> None:
        """Put `front` before everything written, which moves back in place and in bounded memory. Nothing is
        appended after it."""
        self._flush()
        end = self.size_bytes
        while end > 0:
            start = max(0, end - BLOCK_BYTES)
            self._write_at(start + len(front), memoryview(self._read_at(start, end - start)))
            end = start
        self._write_at(0, memoryview(front))
        self.size_bytes += len(front)

    def sha256(self) -> str:
        """The SHA-256 of what was written, in hex."""
        self._flush()
        digest = hashlib.sha256()
        for start in range(0, self.size_bytes, BLOCK_BYTES):
            digest.update(self._read_at(start, min(BLOCK_BYTES, self.size_bytes - start)))
        return digest.hexdigest()

    def readable_path(self) -> Path:
        """Return where what was written can be read before it is published, as long as this is open. Raises
        ArtifactError or OSError."""
        self._flush()
        return self._temporary if self._named else Path(_proc_path(self._fd))

    def sync(self) -> None:
        """Has what was written reach the disk; `publish` then has little left to do. Raises as it does."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._failed(error) from error

    def publish(self) -> None:
        """Sync the file, rename it to its final name and sync the directory. Raises ArtifactError or OSError."""
        self._flush()
        try:
            os.fsync(self._fd)
            if not self._named:
                self._name()
            self._allowed()
            self._temporary.replace(self.path)
            self._named = False
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the staging file and remove its name, if it still has one. Safe to call again."""
        if self._named:
            self._temporary.unlink(missing_ok=True)
            self._named = False
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _failed(self, error: OSError) -> ArtifactError | OSError:
        hint = "; free some space or choose another directory" if error.errno == errno.ENOSPC else limit_remedy(error)
        reason = f"cannot be written: {error.strerror}{hint}"
        if self._is_artifact:
            return ArtifactError(f"{self.path}: {reason}")
        return OSError(error.errno, reason, str(self.path))

    def _check_place(self, expected_bytes: int) -> None:
        if self.path.is_dir():
            raise ArtifactError(f"{self.path}: is a directory, expected a file name")
        if self.path.exists() and not self.path.is_file():
            raise ArtifactError(f"{self.path}: is not a regular file, expected a file name")
        self._allowed()
        if not self.path.parent.is_dir():
            raise ArtifactError(f"{self.path}: the directory {self.path.parent} does not exist")
        space = os.statvfs(self.path.parent)
        free = space.f_bavail * space.f_frsize
        needed = expected_bytes + SPACE_MARGIN_BYTES
        if expected_bytes and free < needed:
            raise ArtifactError(
                f"{self.path}: needs {needed} bytes, {free} are free; free some or choose another directory"
            )

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path.parent, flags | os.O_TMPFILE, 0o666)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
            self._open_named(flags)
            return
        if not Path(_proc_path(self._fd)).exists():  # without /proc it could not get a name later
            os.close(self._fd)
            self._open_named(flags)
            return
        lock(self._fd, wait=True)

    def _open_named(self, flags: int) -> None:
        self._named = True  # before it has the name, so that an interrupt leaves none behind
        while (made := create(self._temporary, flags, 0o666)) is None:
            self._temporary = temporary_path(self.path)
        self._fd = made

    def _name(self) -> None:
        """Give the unnamed file its temporary name."""
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # with a directory descriptor os.link uses linkat and follows the link; without one it does not
            self._named = True  # as above
            os.link(_proc_path(self._fd), self._temporary.name, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def _write_at(self, offset: int, data: memoryview) -> None:
        while len(data):
            try:
                count = os.pwrite(self._fd, data, offset)
            except OSError as error:
                raise self._failed(error) from error
            data = data[count:]
            offset += count

    def _read_at(self, offset: int, size_bytes: int) -> bytes:
        """Read back what was written: always `size_bytes` bytes."""
        parts = []
        while size_bytes:
            try:
                part = os.pread(self._fd, size_bytes, offset)
            except OSError as error:
                raise self._failed(error) from error
            if not part:
                raise ArtifactError(f"{self.path}: cannot be written: the staging file was truncated")
            parts.append(part)
            offset += len(part)
            size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _proc_path(fd: int) -> str:
    return f"/proc/self/fd/{fd}"
