"""Texts from files and standard input: UTF-8, of bounded size."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

import click

from pyc.commands.screen import is_terminal, tell
from pyc.runtime.text.lines import plain_line_ends, without_line_end

MAX_TEXT_BYTES = 64 << 20
MARK = "\ufeff"
"""The byte order mark that editors of another system put before a text."""


def read_text(path: Path | None, *, waits_for: str) -> str:
    """The text of a file, its lines ended by \\n alone and without a byte order mark; of standard input for None or
    "-", and then a terminal is told `waits_for` what.

    Raises click.UsageError for what is not UTF-8 or too large, and for a closed standard input.
    """
    with _opened(path, waits_for) as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise click.UsageError(f"{_name(path)}: more than {MAX_TEXT_BYTES} bytes of text; give less at once")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{_name(path)}: not UTF-8 text at byte {error.start}") from error
    return plain_line_ends(text.removeprefix(MARK))


def read_lines(path: Path | None, *, waits_for: str) -> Iterator[str]:
    """Yield the lines of a file or of standard input as they come, without their ends, which are \\n or \\r\\n, and
    without a byte order mark before the first.

    Raises click.UsageError as `read_text` does, for a line.
    """
    with _opened(path, waits_for) as file:
        number = 0
        while data := file.readline(MAX_TEXT_BYTES + 1):
            number += 1
            if len(data) > MAX_TEXT_BYTES:
                raise click.UsageError(f"{_name(path)}: line {number} has more than {MAX_TEXT_BYTES} bytes")
            try:
                text = without_line_end(data.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise click.UsageError(
                    f"{_name(path)}: line {number} is not UTF-8 text at its byte {error.start}"
                ) from error
            yield text.removeprefix(MARK) if number == 1 else text


def _name(path: Path | None) -> str:
    return "standard input" if path is None or str(path) == "-" else str(path)


@contextmanager
def _opened(path: Path | None, waits_for: str) -> Iterator[BinaryIO]:
    if path is not None and str(path) != "-":
        with path.open("rb") as file:
            yield file
        return
    if sys.stdin is None or sys.stdin.closed:
        raise click.UsageError(f"standard input is closed; expected {waits_for}")
    if is_terminal(sys.stdin):
        tell(f"pyc: reading {waits_for} from the terminal; end with Ctrl-D")
    if not _may_be_read(sys.stdin):
        raise click.UsageError(f"standard input is open for writing only; expected {waits_for}")
    yield sys.stdin.buffer


def _may_be_read(file: TextIO) -> bool:
    try:
        descriptor = file.fileno()
    except (OSError, ValueError):  # no file of the system's
        return True
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY


def check_text(text: str, where: str) -> None:
    """Raise click.UsageError for an argument of the command line that was not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.UsageError(f"{where}: not UTF-8 text at character {error.start}") from error
