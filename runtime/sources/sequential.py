"""Bytes that come in one order and once: standard input, or a web server that knows no ranges.

They go into an anonymous memory file as they come, so that whoever reads may do so in any order and map what is there:
nobody else has that file. What is asked for waits until it has come.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import select
from collections.abc import Callable

from pyc.runtime.errors import ArtifactError, FetchError, RunError
from pyc.runtime.host.limits import limit_remedy
from pyc.runtime.host.machine import most_memory_bytes
from pyc.runtime.host.memory_file import memory_file
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.sizes import human_bytes
from pyc.runtime.host.turns import Turns
from pyc.runtime.sources.local import HeldFile

READ_BYTES = 1 << 20
Read = Callable[[memoryview], int]
"""Fills some of a buffer and returns how much, 0 at the end. Raises OSError and ArtifactError."""


class SequentialSource:
    """What `read` gives, kept in memory. Size unknown until `expect` says it, unless `size_bytes` does."""

    def __init__(self, name: str, read: Read, size_bytes: int | None, end: Callable[[], None] = lambda: None) -> None:
        """`end` is called once nothing more is read. Raises ArtifactError and RunError without memory."""
        self._name, self._read, self._end = name, read, end
        self._size = size_bytes
        self._come = self._granted_bytes = 0
        self._is_whole = self._is_behind_header = False
        self._turns = Turns()
        self._process = os.getpid()
        self._error: ArtifactError | RunError | None = None
        try:
            self._file = io.FileIO(memory_file("pyc-stream"), "r+")  # which closes it where nobody does
        except unless_signalled(OSError) as error:
            raise ArtifactError(f"{name}: {error.strerror}") from error
        self._memory = self._file.fileno()
        self._view: memoryview | None = None
        if size_bytes is not None:
            try:
                self._reserve(size_bytes)
            except RunError:
                self.close()
                raise

    @property
    def size_bytes(self) -> int | None:
        """The size, None while nobody knows it."""
        return self._size

    def expect(self, size_bytes: int) -> None:
        """Say how large it is, as its header has it, which has been read: what is asked for from now on lies behind it.
        Raises RunError where the system does not grant that."""
        self._is_behind_header = True
        if self._size is None:
            self._size = size_bytes
            self._reserve(size_bytes)

    def _reserve(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._memory, size_bytes)  # what has not come takes no memory
        except unless_signalled(OSError) as error:
            raise RunError(f"{self}: {size_bytes} bytes cannot be kept in memory: {_reason(error)}") from error

    def __str__(self) -> str:
        return self._name

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`, once it has come. Raises ArtifactError when the bytes end early."""
        self._await(offset + len(target))
        done = 0
        while done < len(target):
            done += os.preadv(self._memory, [target[done:]], offset + done)

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """The bytes, mapped, once they have come. Raises ArtifactError when they end early."""
        self._await(offset + size_bytes)
        if self._view is None:
            assert self._size is not None
            mapping = mmap.mmap(self._memory, max(self._size, 1), flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            self._view = memoryview(mapping)
        return self._view[offset : offset + size_bytes]

    def hold(self) -> HeldFile | None:
        """None: nobody else can cut or write to what is mapped."""
        return None

    def close(self) -> None:
        """Read nothing more; views stay."""
        if self._memory >= 0:
            self._memory = -1
            try:
                if self._process == os.getpid():
                    self._end()
            finally:
                self._file.close()
                self._view = None

    def _await(self, stop: int) -> None:
        """Return when all bytes up to `stop` are there; the whole that was expected has to end there.

        Raises ArtifactError, and RunError in a child that was forked before they came, and where memory has no room."""
        with self._turns.lock:
            if self._error is not None:
                raise self._error
            if self._memory < 0:
                raise ArtifactError(f"{self}: already closed")
            try:
                self._take(stop)
            except (ArtifactError, RunError) as error:  # what was read is gone
                self._error = error
                raise

    def _take(self, stop: int) -> None:
        if self._come < stop and self._process != os.getpid():
            raise RunError(
                f"{self}: this process was forked, and the rest of the stream belongs to the parent; "
                "load it in the parent"
            )
        if self._come < stop:
            self._require_memory(stop)
        buffer = memoryview(bytearray(READ_BYTES)) if self._come < stop else memoryview(b"")
        while self._come < stop:
            # Nothing beyond a header before that is checked.
            most = stop if self._size is None else max(self._size, stop)
            count = self._read(buffer[: min(most - self._come, READ_BYTES)])
            if not count:
                expected = stop if self._size is None else self._size
                raise ArtifactError(f"{self}: ends at {self._come}, expected {expected} bytes")
            _write(self._memory, buffer[:count], self._come, self._name)
            self._come += count
        if self._come == self._size and not self._is_whole:
            if self._read(memoryview(bytearray(1))):
                raise ArtifactError(f"{self}: has bytes after its end: more than the {self._size} that its header says")
            self._is_whole = True

    def _require_memory(self, stop: int) -> None:
        """Raise RunError where it does not fit, or of a header what is asked for: the kernel would end the process
        without a word. Behind the header pieces are asked for until all is there, as by who verifies."""
        size_bytes = self._size if self._is_behind_header and self._size is not None else stop
        if size_bytes <= max(self._granted_bytes, READ_BYTES):
            return
        most = most_memory_bytes()
        if size_bytes > most:
            raise RunError(
                f"{self}: {human_bytes(size_bytes)} of it are to be kept in memory, and this process may have "
                f"{human_bytes(int(most))}; put it into a file first (curl -o), or have a server that knows ranges"
            )
        self._granted_bytes = size_bytes


def _write(descriptor: int, data: memoryview, offset: int, name: str) -> None:
    while data:
        try:
            count = os.pwrite(descriptor, data, offset)
        except unless_signalled(OSError) as error:
            raise RunError(f"{name}: cannot be kept in memory at byte {offset}: {_reason(error)}") from error
        data, offset = data[count:], offset + count


def _reason(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.ENOMEM):
        return "no memory"
    return f"{error.strerror}{limit_remedy(error)}"


def standard_input(descriptor: int = 0) -> SequentialSource:
    """Standard input as a source. Raises ArtifactError when it is a terminal or not open."""
    try:
        is_terminal = os.isatty(descriptor)
        os.fstat(descriptor)
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"standard input: cannot be read: {error.strerror}") from error
    if is_terminal:
        raise ArtifactError("standard input: a terminal, expected an artifact: curl URL | pyc run - -p TEXT")

    def read(target: memoryview) -> int:
        while True:
            try:
                return os.readv(descriptor, [target])
            except BlockingIOError:
                select.select([descriptor], [], [])
            except unless_signalled(OSError) as error:
                raise FetchError(f"standard input: read failed: {error.strerror}") from error

    return SequentialSource("standard input", read, None)
