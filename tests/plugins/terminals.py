"""A program on a terminal of its own, as a user has one: what is typed, what is shown, how the terminal is left."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

PATIENCE_S = 60.0
"""How long a busy machine may take for anything; nothing waits so long unless it fails."""


def _take_terminal() -> None:
    """In the child: the terminal is its own, and Ctrl-C ends it even where the tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """Runs a command as the leader of a session on a pseudo-terminal of 200 columns."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, stdout: int | None = None) -> None:
        """`stdout` is where standard output goes instead of the terminal."""
        self._primary, self._secondary = pty.openpty()
        fcntl.ioctl(self._secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.settings = termios.tcgetattr(self._secondary)
        self.shown = ""
        self._bytes = b""
        self._seen = 0
        self.process = subprocess.Popen(
            command,
            stdin=self._secondary,
            stdout=self._secondary if stdout is None else stdout,
            stderr=self._secondary,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=_take_terminal,
        )

    def send(self, text: str | bytes) -> None:
        """Type: all of it arrives at once."""
        data = text.encode() if isinstance(text, str) else text
        while data:
            data = data[os.write(self._primary, data) :]

    def expect(self, text: str) -> str:
        """Wait until `text` is shown behind what was expected before, and return what came between."""
        deadline = time.monotonic() + PATIENCE_S
        while (at := self.shown.find(text, self._seen)) < 0:
            ended = self.process.poll() is not None
            if not self._read(0.0 if ended else 0.1) and (ended or time.monotonic() > deadline):
                raise AssertionError(f"{text!r} is not shown behind character {self._seen} of {self.shown!r}")
        between = self.shown[self._seen : at]
        self._seen = at + len(text)
        return between

    def ask(self, line: str, prompt: str = "\n> ") -> str:
        """Type a line and return what is shown from it up to the next prompt."""
        self.send(line + "\n")
        return self.expect(prompt)

    def await_read(self) -> None:
        """Wait until the program has read all that was typed."""
        deadline = time.monotonic() + PATIENCE_S
        while struct.unpack("i", fcntl.ioctl(self._secondary, termios.FIONREAD, bytes(4)))[0]:
            assert time.monotonic() < deadline, "it reads nothing"
            time.sleep(0.001)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.send(b"\x03")

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit code, once the program has ended and all it printed is in `shown`."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            self._read(0.05)
            assert time.monotonic() < deadline, f"it does not end: {self.shown!r}"
        while self._read(0.0):
            pass
        return self.process.returncode

    def is_left_as_found(self) -> bool:
        """Whether the terminal echoes, edits lines and sends signals as before."""
        return termios.tcgetattr(self._secondary) == self.settings

    def _read(self, patience_s: float) -> bool:
        if not select.select([self._primary], [], [], patience_s)[0]:
            return False
        self._bytes += os.read(self._primary, 65536)
        text = self._bytes.decode("utf-8", "replace")
        for unseen, instead in (("\x1b[?2004h", ""), ("\x1b[?2004l\r", ""), ("\r\n", "\n")):
            text = text.replace(unseen, instead)  # readline takes pasted text as a whole, and says so
        self.shown = text
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._primary)
        os.close(self._secondary)
