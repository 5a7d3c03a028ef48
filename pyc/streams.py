"""Standard streams that neither a closed descriptor, a full disk nor an encoding turns into another exit code.

Standard error is a courtesy: what cannot be written there is lost. Standard output is what was asked for: what cannot
be written there is an OSError that names it, also where it was closed. Letters that an encoding lacks come as escapes.

A descriptor may be non-blocking, since programs that share a terminal or a pipe share that, too. Then Python's own
streams end a text where its writer pauses, and lose what the reader has no room for yet; these wait.
"""

import contextlib
import io
import os
import select
import sys
from typing import TextIO


class _Input(io.RawIOBase):
    """A descriptor whose errors name standard input."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def readinto(self, buffer: object) -> int:
        while True:
            try:
                return os.readv(self._descriptor, [buffer])  # type: ignore[list-item]
            except BlockingIOError:
                _wait(self._descriptor, select.POLLIN)
            except OSError as error:
                raise OSError(error.errno, error.strerror, "standard input") from error


class _Output(io.RawIOBase):
    """A descriptor whose errors name standard output."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: object) -> int:
        while True:
            try:
                return os.write(self._descriptor, data)  # type: ignore[arg-type]
            except BlockingIOError:
                _wait(self._descriptor, select.POLLOUT)
            except OSError as error:
                raise OSError(error.errno, error.strerror, "standard output") from error


class _Courtesy(_Output):
    """A descriptor that what cannot be written to is lost."""

    def write(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        try:
            return os.write(self._descriptor, data)  # type: ignore[arg-type]
        except OSError:
            return size


def take_over() -> None:
    """Replace this process's standard streams. Descriptors that are closed are opened, so that no file gets them."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):  # standard output for reading: writing says that it was closed
                opened = os.open(os.devnull, flags)
                if opened != descriptor:
                    os.dup2(opened, descriptor)
                    os.close(opened)
    sys.stdout = _text(_Output(1), sys.stdout)
    sys.stderr = _text(_Courtesy(2), sys.stderr)
    encoding, errors = ("utf-8", "backslashreplace") if sys.stdin is None else (sys.stdin.encoding, sys.stdin.errors)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Input(0)), encoding, errors)


def courtesy(line: str) -> None:
    """Print a line to standard output that repeats what the exit code says: whether it can be written is no matter."""
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- for good: what is buffered would fail again


def _wait(descriptor: int, event: int) -> None:
    """Wait until a non-blocking descriptor can be read from or written to, or fails."""
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll()


def _text(raw: io.RawIOBase, former: TextIO | None) -> TextIO:
    encoding = (former.encoding if former is not None else None) or "utf-8"
    buffered = io.BufferedWriter(raw)
    is_error = isinstance(raw, _Courtesy)
    return io.TextIOWrapper(
        buffered, encoding, errors="backslashreplace", line_buffering=is_error or raw.isatty(), write_through=is_error
    )
