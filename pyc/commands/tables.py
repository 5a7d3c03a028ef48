"""Tables: aligned columns of plain text, the same on a terminal and in a file, and markdown.

No colour and no line drawing: what NO_COLOR, TERM=dumb, a pipe and a log need anyway. A terminal's width is kept to, by
breaking the longest cells; a file has no width, so that a line stays a row for grep and awk.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence

from pyc.commands.screen import say
from pyc.runtime.text.printable import printable

GAP = 2
ENTRY_WIDTH = 80
LEAST_WIDTH = 8
"""What a column keeps at least of its width, however narrow the terminal."""


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print `rows` of text under `header`, the columns `right` aligned to the right, and an empty line.

    Text from files reaches the terminal with control characters escaped.
    """
    for line in plain_table(title, header, rows, right=right, width=terminal_width()):
        say(line)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None where it is none. $COLUMNS goes before it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def plain_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    width: int | None = None,
) -> list[str]:
    """Return the lines of a table, its title first unless it is empty, an empty line last.

    No line is longer than `width` where that can be: the widest columns are made narrower and their cells go on in the
    lines below. Control characters are escaped.
    """
    clean = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*clean, strict=True)]
    indent = GAP if title else 0
    if width is not None:
        widths = _narrowed(widths, width - indent, [n for n in range(len(widths)) if n not in right])
    lines = [printable(title)] if title else []
    for row in clean:
        broken = [_broken(cell, size) for cell, size in zip(row, widths, strict=True)]
        for index in range(max(map(len, broken))):
            cells = [
                part.rjust(size) if column in right else part.ljust(size)
                for column, (parts, size) in enumerate(zip(broken, widths, strict=True))
                for part in (parts[index] if index < len(parts) else "",)
            ]
            lines.append(f"{' ' * indent}{(' ' * GAP).join(cells)}".rstrip())
    return [*lines, ""]


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    """Return the lines of a table in GitHub's markdown."""
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    escaped = [[printable(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    return [f"| {' | '.join(row)} |" for row in (escaped[0], rule, *escaped[1:])]


def entry_lines(name: str, parts: Sequence[str], *, indent: int, joint: str = ",") -> Iterator[str]:
    """Yield a line "name  part, part", and further ones where it gets longer than ENTRY_WIDTH. Escapes nothing."""
    line = f"{name:<{indent}}"
    for index, part in enumerate(parts):
        piece = part + (joint if index + 1 < len(parts) else "")
        if len(line) > indent and len(line) + 1 + len(piece) > ENTRY_WIDTH:
            yield line
            line = " " * indent
        line += (" " if len(line) > indent else "") + piece
    yield line


def _narrowed(widths: Sequence[int], width: int, columns: Sequence[int]) -> list[int]:
    """The widths of all columns, the widest of `columns` cut down until a line fits, none below LEAST_WIDTH."""
    fitted = list(widths)
    while sum(fitted) + GAP * (len(fitted) - 1) > width:
        widest = max(columns, key=fitted.__getitem__, default=None)
        if widest is None or fitted[widest] <= LEAST_WIDTH:
            break
        fitted[widest] -= 1
    return fitted


def _broken(cell: str, width: int) -> list[str]:
    """The pieces of a cell, none longer than `width`, between words or parts of a name where there are any."""
    pieces = []
    while len(cell) > width:
        space = cell.rfind(" ", 1, width + 1)
        end = space if space > 0 else max(cell.rfind(letter, 1, width) for letter in "+./_") + 1 or width
        pieces.append(cell[:end])
        cell = cell[end:].lstrip(" ")
    return [*pieces, cell]
