"""Messages typed at a prompt: line editing and history by readline, and several ways to write several lines.

A pasted text of several lines is one message as it is (bracketed paste of GNU readline; libedit has none, so lines
that arrive at once are joined). When typed, a line that ends in a backslash goes on in the next, and lines between two
triple quotes are one message.
"""

import codecs
import importlib
import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

from pyc.commands.chat_history import ChatHistory
from pyc.commands.screen import is_terminal

PROMPT, CONTINUED = "> ", ". "
QUOTES = '"""'
_PASTE_GAP_S = 0.02


class DroppedMessageError(Exception):
    """What was typed is no message; the text says why."""


class LineEditor:
    """Reads messages from a terminal. Only one can be in use, since readline is one for the process."""

    def __init__(self, history: ChatHistory | None, completions: Sequence[str] = ()) -> None:
        """`history` is offered to the arrow keys and told every message; `completions` are first words for Tab."""
        self._history = history
        self._readline = _readline() if is_terminal(sys.stdout) else None
        self._joins_pasted_lines = False
        if self._readline is not None:
            self._set_up(self._readline, completions)

    def read_message(self) -> str:
        """The next message, without the marks that joined its lines.

        Raises EOFError at the end of input, KeyboardInterrupt, and DroppedMessageError for a message that ends before
        it is finished or is not text.
        """
        message = self._line(PROMPT)
        if "\n" not in message:
            try:
                message = self._continued(message)
            except EOFError as error:
                raise DroppedMessageError("the message was not finished; it is left out") from error
        if message.strip():
            self._remember(message)
        return message

    def _continued(self, line: str) -> str:
        """The message that a typed line begins."""
        if line.startswith(QUOTES):
            return self._quoted(line.removeprefix(QUOTES))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line(CONTINUED))
        return "\n".join(lines)

    def _quoted(self, line: str) -> str:
        """The text up to the next triple quotes, of which `line` is the beginning."""
        lines = [line]
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(self._line(CONTINUED))
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        """A line, or the lines of a paste."""
        lines = [self._input(prompt)]
        while self._joins_pasted_lines and select.select([sys.stdin], [], [], _PASTE_GAP_S)[0]:
            try:
                lines.append(self._input(""))
            except EOFError:
                break
        return "\n".join(lines).rstrip("\n")

    def _input(self, prompt: str) -> str:
        try:
            if self._readline is None:  # or input() would write the prompt among what the model says
                stream = sys.stdout if is_terminal(sys.stdout) else sys.stderr
                print(prompt, end="", file=stream, flush=True)
                line = sys.stdin.readline()
                if not line:
                    raise EOFError
                line = line.removesuffix("\n")
            else:
                line = input(prompt)
            line.encode("utf-8")
        except UnicodeError as error:
            raise DroppedMessageError(_not_text()) from error
        return line.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")

    def _remember(self, message: str) -> None:
        if self._history is not None:
            self._history.add(message)
        self._offer(message)

    def _offer(self, message: str) -> None:
        """Have the arrow keys find a message, if the terminal's encoding can spell it."""
        if self._readline is not None:
            with suppress(ValueError):
                self._readline.add_history(message)

    def _set_up(self, readline: ModuleType, completions: Sequence[str]) -> None:
        is_libedit = "libedit" in (readline.__doc__ or "")
        self._joins_pasted_lines = is_libedit
        readline.set_auto_history(False)
        readline.clear_history()
        for message in self._history.messages if self._history is not None else ():
            self._offer(message)

        def complete(text: str, state: int) -> str | None:
            is_first = readline.get_begidx() == 0
            found = [word for word in completions if is_first and text and word.startswith(text)]
            return found[state] if state < len(found) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" \t\n")
        if is_libedit:
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            is_dumb = os.environ.get("TERM", "dumb") == "dumb"  # which shows the marks as text
            readline.parse_and_bind(f"set enable-bracketed-paste {'off' if is_dumb else 'on'}")
            readline.parse_and_bind("tab: complete")


def _readline() -> ModuleType | None:
    """The module, unless this Python was built without it."""
    try:
        return importlib.import_module("readline")
    except ImportError:
        return None


def _not_text() -> str:
    """What is said of a line that is no text, and where the locale has no UTF-8, how to have it."""
    encoding = codecs.lookup(sys.stdin.encoding or "utf-8").name
    remedy = "" if encoding == "utf-8" else "; start pyc with LC_ALL=C.UTF-8 to write UTF-8"
    return f"that line is not text in the terminal's encoding, {encoding}, and is left out{remedy}"
