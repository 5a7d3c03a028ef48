"""What another program says to a question: who keeps a key or a login.

It is run without a shell, and without the variables that name a signing key: one that calls pyc itself means a key of
its own, where the variable would start it again, and again, and one that keeps a login need not know the key.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyc.runtime.host.memory_file import memory_file
from pyc.runtime.host.signal_handlers import unless_signalled

KEPT_FROM_IT = ("PYC_SIGNER", "PYC_SIGNING_KEY", "PYC_SIGNING_KEY_FILE")
MAX_COMPLAINT_BYTES = 300
LOOK_SECONDS = 0.1
"""How long nothing is printed before one looks whether the process has ended."""
PIPE_BYTES = 1 << 20
"""What is read at once: more than a pipe holds."""


class NoAnswerError(Exception):
    """A program that cannot be run, takes too long or says too much; the text is the end of a sentence about it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code of a program, what it printed, and the end of what it wrote to standard error."""

    code: int
    printed: bytes
    complaint: bytes

    @property
    def said(self) -> str:
        """The complaint as a line that may be shown."""
        return "".join(letter for letter in self.complaint.decode("utf-8", "replace") if letter.isprintable())


def ask(words: Sequence[str], question: bytes, timeout_s: float, most_bytes: int) -> Answer:
    """Return what the program of these words says to what it reads from standard input. Raises NoAnswerError."""
    try:
        given = memory_file("message")
    except unless_signalled(OSError) as error:
        raise NoAnswerError(f"cannot be run: {error.strerror}") from error
    environment = {name: value for name, value in os.environ.items() if name not in KEPT_FROM_IT}
    try:
        os.write(given, question)
        os.lseek(given, 0, os.SEEK_SET)
        with subprocess.Popen(
            words, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as process:
            try:
                printed, complaint = _listen(process, timeout_s, most_bytes)
            except BaseException:
                process.kill()
                raise
    except unless_signalled(OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NoAnswerError(f"cannot be run: {reason}") from error
    finally:
        os.close(given)
    return Answer(process.returncode, printed, complaint)


def _listen(process: subprocess.Popen[bytes], timeout_s: float, most_bytes: int) -> tuple[bytes, bytes]:
    """What a process prints until it ends, and the end of its complaint.

    Its end counts, not that of its outputs: it may leave a helper behind that holds them, as ssh's ControlPersist does.
    """
    deadline_s = time.monotonic() + timeout_s
    assert process.stdout is not None and process.stderr is not None
    printed, complaint = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, printed)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            has_ended = process.poll() is not None  # before it is read: all that it has printed is there then
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 and not has_ended:
                break
            for key, _ in selector.select(0 if has_ended else min(left_s, LOOK_SECONDS)):
                data = os.read(key.fd, PIPE_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                key.data.extend(data)
            if len(printed) > most_bytes:
                raise NoAnswerError(f"printed more than {most_bytes} bytes")
            del complaint[:-MAX_COMPLAINT_BYTES]
            if has_ended:
                break
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"took more than {timeout_s:g} s") from None
    return bytes(printed), bytes(complaint)
