"""Tables: drawn by rich on a terminal, aligned columns of plain text elsewhere."""

import sys
from collections.abc import Sequence

import click


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print `rows` of text under `header`, the columns `right` aligned to the right, and an empty line.

    Text from files reaches the terminal with control characters escaped.
    """
    clean = [[_printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(title, header, clean, right)
    else:
        for line in plain_table(title, header, clean, right=right):
            click.echo(line)


def plain_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    """Return the lines of a table without ornament, an empty one last."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [title]
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return [*lines, ""]


def _print_rich(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
