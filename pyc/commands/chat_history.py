"""What was typed in conversations, for the arrow keys of the next: `chat_history` in pyc's home, readable by its owner
only.

A line a message, as JSON text, since a message may have several lines. A message that begins with a space is not kept.
In a home that others may write to, a file that is not this user's own is neither read nor written to.
Nothing here fails: without a home, on a full disk or with a damaged file a conversation has less history.
"""

import json
import logging
import os
import stat
from pathlib import Path

from pyc.runtime.host.home import find_home_directory, make_folder, write_whole
from pyc.runtime.host.own_files import why_not_own

KEPT_MESSAGES = 1000
MAX_FILE_BYTES = 4 << 20
_log = logging.getLogger(__name__)


class ChatHistory:
    """The file of what was typed, read once and appended to."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        """The latest, the oldest of them first."""
        self._path: Path | None = None
        home = find_home_directory()
        if home is None:
            return
        self._path = home / "chat_history"
        try:
            self.messages = self._read(self._path)
        except (OSError, ValueError) as error:
            _log.info("no chat history: %s", error)

    def add(self, message: str) -> None:
        """Keep a message, unless it begins with a space or is the one before."""
        if message.startswith(" ") or self.messages[-1:] == [message]:
            return
        self.messages.append(message)
        if self._path is None:
            return
        try:
            make_folder(self._path.parent, 0o700)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            descriptor = os.open(self._path, flags, 0o600)
            try:
                _require_own(self._path, descriptor)
                os.write(descriptor, (json.dumps(message) + "\n").encode())
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            _log.info("chat history is not kept: %s", error)
            self._path = None

    def _read(self, path: Path) -> list[str]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            _require_own(path, descriptor)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):  # /dev/null, say: somebody wants no history
                return []
            file.seek(max(0, status.st_size - MAX_FILE_BYTES))
            lines = file.read(MAX_FILE_BYTES).split(b"\n")
        messages = [message for line in lines if (message := _message(line)) is not None]
        if len(lines) > 2 * KEPT_MESSAGES or status.st_size > MAX_FILE_BYTES:
            text = "".join(json.dumps(message) + "\n" for message in messages[-KEPT_MESSAGES:])
            write_whole(path, text, 0o600, replace=True)
        return messages[-KEPT_MESSAGES:]


def _require_own(path: Path, descriptor: int) -> None:
    """Raise OSError where others may have put there what is open as `path`: a file of theirs, or a link to another."""
    if not path.parent.stat().st_mode & 0o022:
        return
    found = os.fstat(descriptor)
    reason = why_not_own(found, path) if os.path.samestat(path.lstat(), found) else "is a link"
    if reason:
        raise OSError(f"{path} {reason}, in a folder that others may write to")


def _message(line: bytes) -> str | None:
    """A line's message; None for a line that was not written whole."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, str) else None
