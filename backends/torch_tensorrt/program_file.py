"""What torch writes a program into: a file that never raises while torch writes.

torch's writer ends the process where the file raises, be it for a full disk or for a signal's handler: its destructor
raises again. So the first error is kept, and raised when torch is done, and torch writes in a thread of its own, where
no signal's handler runs.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

_TURN_S = 1.0


class ProgramFile(io.RawIOBase):
    """Passes what is written on to `file`; after `stop`, or an error, nothing more."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._problem: BaseException | None = None

    def writable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is, as far as torch does: forward."""
        return True

    def write(self, data: Any) -> int:
        """Write all bytes, a memoryview, or keep the error; their number is returned either way."""
        if self._problem is None:
            try:
                self._file.write(data)
            except BaseException as problem:  # noqa: BLE001 -- `finish` raises it
                self._problem = problem
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place, or keep the error."""
        if self._problem is None:
            try:
                return self._file.seek(offset, whence)
            except BaseException as problem:  # noqa: BLE001 -- `finish` raises it
                self._problem = problem
        return 0

    def stop(self, problem: BaseException) -> None:
        """Write nothing more; `problem` is what `finish` raises."""
        if self._problem is None:
            self._problem = problem

    def finish(self) -> None:
        """Raise the first error, if there was one."""
        if self._problem is not None:
            raise self._problem


def write_undisturbed(file: BinaryIO, write: Callable[[ProgramFile], None]) -> None:
    """Have `write` write to `file` in a thread of its own, and wait for it. Raises OSError, and what a signal's handler
    raises, once `write` has come to its end, which it does without writing the rest."""
    sink, raised, done = ProgramFile(file), list[BaseException](), threading.Event()

    def run() -> None:
        try:
            write(sink)
        except BaseException as problem:  # noqa: BLE001 -- it is raised by who waits
            raised.append(problem)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="pyc-export")
    try:
        thread.start()
    except RuntimeError:  # no more threads
        run()
    except BaseException as problem:  # noqa: BLE001 -- a signal's, which `finish` raises
        sink.stop(problem)
    while not done.is_set():  # not by `join`: an interrupted one forgets that the thread runs
        try:
            if not done.wait(_TURN_S) and not thread.is_alive():
                break
        except BaseException as problem:  # noqa: BLE001 -- the same
            sink.stop(problem)
    sink.finish()
    if raised:
        raise raised[0]
