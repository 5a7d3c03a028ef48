"""Strict YAML: text to a tree of nodes that remember where they were written.

What is read is the part of YAML that every tool agrees on: one document of mappings, lists and scalars in
UTF-8, at most 1 MiB, 32 levels and 10,000 nodes. Refused, each with line and column: anchors and aliases (so
no alias bomb), merge keys, tags (so no object is ever constructed), directives, duplicate keys, a second
document, control characters, and plain scalars that YAML 1.1 and 1.2 read differently (`no`, `017`, `0o17`,
`1_000`, `1:30`, `.inf`).

Plain scalars follow the core schema of YAML 1.2: null and ~, true and false, decimal integers, decimal
numbers; all else is text. PyYAML is used as far as its event stream only; its constructors never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol, cast

import yaml

from pyc.runtime.errors import RecipeError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 10_000
_MAX_DIGITS = 18

# libyaml where the wheel has it (0.03 s for the worst 1 MiB), else the same grammar in Python (1.2 s).
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# All but printable characters, tab and line end; also what hides or reorders text in an editor.
_FORBIDDEN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|\r(?!\n)"
)
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?i:inf|nan)")
_CONSTANTS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_AMBIGUOUS = (
    (re.compile(r"(?i:yes|on)"), "write true, or quote it for text"),
    (re.compile(r"(?i:no|off)"), "write false, or quote it for text"),
    (
        re.compile(r"[-+]?0(?:[0-9_]+(?:\.[0-9_]*)?|[oO][0-7_]+|[xX][0-9a-fA-F_]+|[bB][01_]+)"),
        "write a decimal number without leading zeros, or quote it for text",
    ),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-9_]+)+(?:\.[0-9_]*)?"),
        "write one decimal number, or quote it for text",
    ),
    (
        re.compile(r"[-+]?(?=[0-9.]*_)[0-9][0-9_]*(?:\.[0-9_]*)?"),
        "write it without underscores, or quote it for text",
    ),
)

Value = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a node was written: a file with 1-based line and column, or another source (line 0)."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Scalar:
    """A resolved scalar; `text` is what was written."""

    value: Value
    text: str
    mark: Mark


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list."""

    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key: value` of a mapping, with the place of the key."""

    key: str
    key_mark: Mark
    node: Node


@dataclass(frozen=True, slots=True)
class MapNode:
    """A mapping with unique text keys, in the order written."""

    entries: tuple[Entry, ...]
    mark: Mark

    def get(self, key: str) -> Node | None:
        """The value of `key`, or None."""
        return next((entry.node for entry in self.entries if entry.key == key), None)


Node = Scalar | ListNode | MapNode


class _YamlMark(Protocol):
    line: int
    column: int


class _Event(Protocol):
    """What is used of PyYAML's events; which attributes exist depends on the class of the event."""

    start_mark: _YamlMark
    anchor: str | None
    tag: str | None
    value: str
    style: str | None
    version: tuple[int, int] | None
    tags: Mapping[str, str] | None


def fail(mark: Mark, message: str) -> NoReturn:
    """Raise RecipeError `FILE:LINE:COL: message`."""
    raise RecipeError(f"{mark}: {message}")


def decode_text(data: bytes, source: str) -> str:
    """Return `data` as text; RecipeError unless it is at most 1 MiB of UTF-8 without a byte order mark."""
    if len(data) > MAX_BYTES:
        fail(Mark(source, 1, 1), f"the recipe is larger than {MAX_BYTES} bytes; a recipe is a short text")
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")):
        fail(Mark(source, 1, 1), "the file starts with a byte order mark; save it as UTF-8 without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line_start = data.rfind(b"\n", 0, error.start) + 1
        column = len(data[line_start : error.start].decode("utf-8")) + 1
        mark = Mark(source, data.count(b"\n", 0, error.start) + 1, column)
        raise RecipeError(f"{mark}: not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8") from error
    found = _FORBIDDEN.search(text)
    if found:
        start = found.start()
        mark = Mark(source, text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))
        fail(mark, f"character U+{ord(found[0]):04X} is not allowed; remove it (in text, quote and escape it)")
    return text


def parse_yaml(text: str, source: str, *, place: bool = True) -> Node:
    """Return the only document of `text`; with `place` false, marks name the source alone.

    Raises RecipeError for all that the module's docstring calls refused, and for text that is not YAML.
    """
    reader = _Reader(text, source, place)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark or error.context_mark
        mark = Mark(source, where.line + 1, where.column + 1) if place and where else Mark(source)
        lines = text.split("\n")
        tab = where and where.line < len(lines) and re.match(" *\t", lines[where.line])
        hint = "; indent with spaces, not tabs" if tab else ""
        context = f" ({error.context})" if error.context else ""
        raise RecipeError(f"{mark}: not valid YAML: {error.problem}{context}{hint}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{source}: not valid YAML: {error}") from error


def resolve_plain(text: str, mark: Mark) -> Value:
    """Return the value of an unquoted scalar by YAML 1.2; RecipeError where YAML 1.1 reads another."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    shown = text if len(text) <= 40 else text[:40] + "..."
    for pattern, remedy in _AMBIGUOUS:
        if pattern.fullmatch(text):
            fail(mark, f"{shown!r} without quotes is read differently by YAML 1.1 and 1.2; {remedy}")
    if _NOT_FINITE.fullmatch(text):
        fail(mark, f"{text!r} is not accepted, only finite numbers are")
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            fail(mark, f"the number {shown} is out of range")
        return int(text)
    if _DECIMAL.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            fail(mark, f"the number {shown} is out of range")
        return number
    return text


class _Reader:
    """Builds nodes from PyYAML's events; one instance reads one document."""

    def __init__(self, text: str, source: str, place: bool) -> None:
        self._source = source
        self._place = place
        self._events = cast(Iterator[_Event], yaml.parse(text, Loader=_LOADER))
        self._nodes = 0

    def document(self) -> Node:
        """The only document."""
        next(self._events)  # stream start
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            fail(Mark(self._source, 1, 1) if self._place else Mark(self._source), "the recipe is empty")
        if event.version or event.tags:
            fail(self._mark(event), "directives (%YAML, %TAG) are not accepted; remove the line")
        root = self._node(next(self._events), 0)
        next(self._events)  # document end
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            fail(self._mark(event), "a second document starts here; a recipe is one document")
        return root

    def _mark(self, event: _Event) -> Mark:
        if not self._place:
            return Mark(self._source)
        return Mark(self._source, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: _Event, depth: int) -> Node:
        mark = self._mark(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            fail(mark, f"more than {MAX_NODES} values; a recipe is a short text")
        if isinstance(event, yaml.AliasEvent):
            fail(mark, f"alias *{event.anchor} is not accepted; write the value out")
        if event.anchor is not None:
            fail(mark, f"anchor &{event.anchor} is not accepted; write the value out where it is needed")
        if event.tag is not None:
            fail(mark, f"tag {event.tag!r} is not accepted; remove it")
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style is None or event.style == ""
            return Scalar(resolve_plain(event.value, mark) if plain else event.value, event.value, mark)
        if depth == MAX_DEPTH:
            fail(mark, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.SequenceStartEvent):
            return ListNode(tuple(self._items(depth)), mark)
        return MapNode(self._entries(depth), mark)

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> tuple[Entry, ...]:
        entries: dict[str, Entry] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            mark = self._mark(event)
            key = self._key(event, mark)
            if key in entries:
                first = f" (first given at line {entries[key].key_mark.line})" if mark.line else ""
                fail(mark, f"duplicate key {key!r}{first}; keep one")
            entries[key] = Entry(key, mark, self._node(next(self._events), depth + 1))
        return tuple(entries.values())

    def _key(self, event: _Event, mark: Mark) -> str:
        if isinstance(event, yaml.AliasEvent):
            fail(mark, f"alias *{event.anchor} is not accepted; write the key out")
        if not isinstance(event, yaml.ScalarEvent):
            fail(mark, "a key must be a word, not a list or a mapping")
        if event.anchor is not None or event.tag is not None:
            fail(mark, f"anchors and tags are not accepted; write the key {event.value!r} alone")
        if event.value == "<<":
            fail(mark, "merge key << is not accepted; write the keys out")
        if not event.value:
            fail(mark, "empty key; write `key: value`")
        return str(event.value)
