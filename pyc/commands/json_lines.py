"""Files *.jsonl and *.ndjson, with a JSON value a line: a text, or an object with that text and an "id"."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from pyc.commands.reading import check_text, read_lines
from pyc.runtime.text.json_objects import unique_names
from pyc.runtime.text.json_text import parse_json

SUFFIXES = (".jsonl", ".ndjson")
EXPECTED_TEXT = 'expected a JSON string or {"text": "..."}, and "id" beside it if you like'


@dataclass(frozen=True, slots=True)
class JsonLine:
    """A line's value, of an object what is in it beside "id"; and that."""

    value: str | dict[str, object]
    id: str | int | None = None


def is_json_lines(path: Path | None) -> bool:
    """Whether a file is read as JSON, by its name."""
    return path is not None and path.suffix.lower() in SUFFIXES


def parse_line(line: str, where: str, expected: str) -> JsonLine:
    """Return what a line says. Raises click.UsageError, with `where` and what is `expected`, for what is no JSON,
    neither text nor an object, or has another "id" than text or an integer."""
    try:
        value = parse_json(line, unique_names)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{where}: not JSON ({error}); {expected}") from error
    if isinstance(value, str):
        return JsonLine(value)
    if not isinstance(value, dict):
        raise click.UsageError(f"{where}: {expected}")
    name = value.pop("id", None)
    if name is not None and not (isinstance(name, str | int) and not isinstance(name, bool)):
        raise click.UsageError(f'{where}: "id" is neither text nor an integer')
    return JsonLine(value, name)


def read_texts(path: Path) -> Iterator[JsonLine]:
    """Yield the texts of a file of JSON lines as they come, each as the `value`. Raises click.UsageError, naming the
    line, for one that has no text, an empty line too: else those behind it would be of other numbers than their
    lines."""
    for number, line in enumerate(read_lines(path, waits_for="a text a line"), 1):
        where = f"{path}: line {number}"
        if not line.strip():
            raise click.UsageError(f"{where}: it is empty; {EXPECTED_TEXT}")
        found = parse_line(line, where, EXPECTED_TEXT)
        text = found.value if isinstance(found.value, str) else found.value.pop("text", None)
        if not isinstance(text, str) or (isinstance(found.value, dict) and found.value):
            raise click.UsageError(f"{where}: {EXPECTED_TEXT}")
        check_text(text, where)
        yield JsonLine(text, found.id)
