"""Texts from files and standard input: UTF-8, with any kind of line end, of bounded size."""

import sys
from pathlib import Path

import click

from pyc.commands.screen import is_terminal

MAX_TEXT_BYTES = 64 << 20


def read_text(path: Path | None, *, waits_for: str) -> str:
    """The text of a file; of standard input for None or "-", and then a terminal is told `waits_for` what.

    Raises click.UsageError for what is not UTF-8 or too large, and for a closed standard input.
    """
    if path is None or str(path) == "-":
        where = "standard input"
        if sys.stdin is None or sys.stdin.closed:
            raise click.UsageError(f"{where} is closed; expected {waits_for}")
        if is_terminal(sys.stdin):
            print(f"pyc: reading {waits_for} from the terminal; end with Ctrl-D", file=sys.stderr, flush=True)
        data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    else:
        where = str(path)
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise click.UsageError(f"{where}: more than {MAX_TEXT_BYTES} bytes of text; give less at once")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{where}: not UTF-8 text at byte {error.start}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_text(text: str, where: str) -> None:
    """Raises click.UsageError for an argument of the command line that was not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise click.UsageError(f"{where}: not UTF-8 text at character {error.start}") from error
