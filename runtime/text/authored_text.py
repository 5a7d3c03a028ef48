"""Text that knows who wrote each of its characters.

What a chat template renders is a mixture: the template's own words, among them control tokens such as
`<|im_start|>`, and what a caller or a model said. Only the template may write control tokens, so a rendering
carries, beside the text, one letter a character: its author. Every operation that a template can apply to text
keeps the two in step. An operation that does not say which characters of its result come from which operand gives
them the operands' author when they have one in common, and UNKNOWN otherwise; so nothing is ever taken for the
template's that it did not write.

While a template is rendered, each such text counts (rendering_budget.py).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple, SupportsIndex, cast

from pyc.runtime.text.rendering_budget import rendering

TEMPLATE = "t"
"""The template itself, and the model's special tokens."""
ROLE = "r"
"""The name of a role that templates know; it counts as the template's, which may build a control token of it."""
MODEL = "m"
"""A message of the assistant: the model may write control tokens that are not special, such as `<think>`."""
CALLER = "c"
"""Everything else that comes in messages, tools and variables."""
UNKNOWN = "u"
"""A mixture of the others."""

_OBJECT_BYTES = 200
_ASCII_BYTES, _WIDE_BYTES = 2, 5
"""Of a character and its author, as Python keeps them."""
_PARENTHESIS = re.compile(r"[()]")
_FIELD = re.compile(r"[#0\- +]*+(?P<size>(?:\d++|\*)?+(?:\.(?:\*|\d*+))?+)[hlL]?+(?P<kind>.)", re.DOTALL)
_EMPTY: dict[str, str] = {}
VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_WORDLESS = (bool, int, float, type(None))
"""Values whose text is a number or a word of Python's, whoever the value comes from."""


class Field(NamedTuple):
    """A field of a %-format, [start, end): its key, its width and precision, and how it shows a value."""

    start: int
    end: int
    name: str | None
    size: str
    kind: str


class AuthoredText(str):
    """A str with `authors`, a str of the same length. It compares and hashes as the text alone."""

    __slots__ = ("_size_class", "authors")
    _size_class: object
    authors: str

    def __new__(cls, text: str, authors: str) -> AuthoredText:
        """`authors` is one author for all of `text`, or one for each character."""
        made = super().__new__(cls, text)
        made.authors = authors if len(authors) == len(text) else authors * len(text)
        if (budget := rendering.budget) is not None:
            size_bytes = (_ASCII_BYTES if text.isascii() else _WIDE_BYTES) * len(text) + _OBJECT_BYTES
            made._size_class = budget.size_class(size_bytes)
        return made

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        made: dict[tuple[str, str], AuthoredText] = {}  # a long text has few letters
        for letter in zip(super().__iter__(), self.authors, strict=True):
            yield made.get(letter) or made.setdefault(letter, AuthoredText(*letter))

    def __getitem__(self, index: SupportsIndex | slice) -> AuthoredText:
        return AuthoredText(super().__getitem__(index), self.authors[index])

    def __add__(self, other: str) -> AuthoredText:
        return AuthoredText(super().__add__(other), self.authors + authors_of(other))

    def __radd__(self, other: str) -> AuthoredText:
        return AuthoredText(str.__add__(other, self), authors_of(other) + self.authors)

    def __mul__(self, times: SupportsIndex) -> AuthoredText:
        return AuthoredText(super().__mul__(times), self.authors * times)

    __rmul__ = __mul__

    def __mod__(self, values: object) -> AuthoredText:
        return percent(self, values)

    # --- parts of the text

    def strip(self, chars: str | None = None, /) -> AuthoredText:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> AuthoredText:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> AuthoredText:
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> AuthoredText:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> AuthoredText:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        return self._parted(super().partition(sep))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        return self._parted(super().rpartition(sep))

    def _parted(self, parts: tuple[str, str, str]) -> tuple[str, str, str]:
        first, second = len(parts[0]), len(parts[0]) + len(parts[1])
        return self[:first], self[first:second], self[second:]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().rsplit(sep, maxsplit), sep, from_right=True)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = super().splitlines(keepends)
        ends = [0, *accumulate(map(len, super().splitlines(True)))]
        return self._parts(zip(lines, ends, strict=False))

    def _parts(self, found: Iterable[tuple[str, int]]) -> list[str]:
        """Parts of this text, and where each begins: with their authors."""
        made: dict[tuple[str, str], AuthoredText] = {}  # a text of a hundred thousand parts has few that differ
        keys = ((part, self.authors[start : start + len(part)]) for part, start in found)
        return [made.get(key) or made.setdefault(key, AuthoredText(*key)) for key in keys]

    def _located(self, parts: list[str], separator: str | None, *, from_right: bool = False) -> list[str]:
        """The parts that a split gave, with their authors."""
        if separator is None and from_right:  # the first part is what was left over, spaces inside and all
            located: list[str] = []
            end = len(self)
            for part in reversed(parts):
                end = self.rindex(part, 0, end)
                located.append(self[end : end + len(part)])
            return located[::-1]
        return self._parts(self._places(parts, separator))

    def _places(self, parts: list[str], separator: str | None) -> Iterator[tuple[str, int]]:
        start = 0
        for part in parts:
            if separator is None:
                start = self.index(part, start)
            yield part, start
            start += len(part) + len(separator or "")

    # --- texts put together

    def join(self, parts: Iterable[str], /) -> AuthoredText:
        given = list(parts)
        return AuthoredText(super().join(given), self.authors.join(map(authors_of, given)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> AuthoredText:
        text = super().replace(old, new, count)
        if not old:  # between all characters
            return derive(text, self, new)
        pieces = super().split(old, count)
        replaced: list[str] = []
        start = 0
        for piece in pieces:
            replaced.append(self.authors[start : start + len(piece)])
            start += len(piece) + len(old)
        return AuthoredText(text, authors_of(new).join(replaced))

    # --- the same characters, changed

    def lower(self) -> AuthoredText:
        return self._respelt(super().lower())

    def upper(self) -> AuthoredText:
        return self._respelt(super().upper())

    def capitalize(self) -> AuthoredText:
        return self._respelt(super().capitalize())

    def casefold(self) -> AuthoredText:
        return self._respelt(super().casefold())

    def swapcase(self) -> AuthoredText:
        return self._respelt(super().swapcase())

    def title(self) -> AuthoredText:
        return self._respelt(super().title())

    def _respelt(self, text: str) -> AuthoredText:
        if len(text) == len(self):
            return AuthoredText(text, self.authors)
        return derive(text, self)

    def center(self, width: SupportsIndex, fillchar: str | None = None, /) -> AuthoredText:
        padding = max(0, operator.index(width) - len(self))
        before = padding // 2 + (padding & operator.index(width) & 1)  # where Python leaves the odd one
        return self._padded(super().center(width, " " if fillchar is None else fillchar), before, fillchar)

    def ljust(self, width: SupportsIndex, fillchar: str | None = None, /) -> AuthoredText:
        return self._padded(super().ljust(width, " " if fillchar is None else fillchar), 0, fillchar)

    def rjust(self, width: SupportsIndex, fillchar: str | None = None, /) -> AuthoredText:
        text = super().rjust(width, " " if fillchar is None else fillchar)
        return self._padded(text, len(text) - len(self), fillchar)

    def _padded(self, text: str, before: int, fillchar: str | None) -> AuthoredText:
        author = TEMPLATE if fillchar is None else authors_of(fillchar)
        return AuthoredText(text, author * before + self.authors + author * (len(text) - len(self) - before))

    def zfill(self, width: SupportsIndex, /) -> AuthoredText:
        return derive(super().zfill(width), self)


def authors_of(text: str) -> str:
    """The author of each character; UNKNOWN for text that does not know."""
    return text.authors if isinstance(text, AuthoredText) else UNKNOWN * len(text)


def is_templates(text: str) -> bool:
    """Whether the template wrote all of a text."""
    return not authors_of(text).strip(TEMPLATE)


def derive(text: str, *sources: object) -> AuthoredText:
    """`text`, made out of `sources` by an operation that does not say how.

    Its author is the one that the texts in the sources have in common. That of numbers, True, False and None is the
    template; that of any value but these, texts, lists and mappings of them is not known.
    """
    return AuthoredText(text, _author(sources))


def _author(sources: tuple[object, ...]) -> str:
    authors = set[str]()
    for source in sources:
        authors.update(*_authors(source))
    if len(authors) > 1:
        authors.discard(ROLE)  # by itself it spells no control token
    if len(authors) > 1:
        authors = {CALLER} if authors == {CALLER, MODEL} else {UNKNOWN}
    return authors.pop() if authors else TEMPLATE


def adopt(value: object, *sources: object) -> object:
    """`value`, which an operation made of `sources`: with authors when it is text that lost them."""
    if _is_nobodys(value):
        return derive(cast("str", value), *sources)
    if type(value) in (list, tuple) and any(map(_is_nobodys, cast("list[object]", value))):
        author = _author(sources)
        made: dict[str, AuthoredText] = {}  # a list of a hundred thousand texts has few that differ
        members: list[object] = []
        for member in cast("list[object]", value):
            if _is_nobodys(member):
                text = cast("str", member)
                member = made.get(text) or made.setdefault(text, AuthoredText(text, author))
            members.append(member)
        return members if isinstance(value, list) else tuple(members)
    return value


def percent_fields(template: str) -> Iterator[Field]:
    """The fields of a %-format, up to one that is none, as Python reads them: parentheses of a key are in pairs."""
    plain = str.__str__(template)
    start = plain.find("%")
    while start >= 0:
        end, name = start + 1, None
        if plain.startswith("(", end):
            depth = 0
            for found in _PARENTHESIS.finditer(plain, end):
                depth += 1 if found[0] == "(" else -1
                if not depth:
                    break
            else:
                return
            name, end = plain[end + 1 : found.start()], found.end()
        rest = _FIELD.match(plain, end)
        if rest is None:
            return
        yield Field(start, rest.end(), name, rest["size"], rest["kind"])
        start = plain.find("%", rest.end())


def percent(template: str, values: object, wrap: Callable[[object], object] = lambda value: value) -> AuthoredText:
    """template % values, one field at a time. `wrap` is what shows a value, or a mapping of values."""
    given = iter(values if isinstance(values, tuple) else (values,))
    is_mapping = hasattr(type(values), "__getitem__") and not isinstance(values, (str, tuple))
    shown_values = wrap(values) if is_mapping else tuple(map(wrap, values if isinstance(values, tuple) else (values,)))
    text = str.__mod__(template, cast("tuple[object, ...]", shown_values))
    whole = template if isinstance(template, AuthoredText) else AuthoredText(template, UNKNOWN)
    pieces: list[AuthoredText] = []
    end = 0
    for field in percent_fields(template):
        pieces.append(whole[end : field.start])
        end = field.end
        if field.kind == "%":
            pieces.append(AuthoredText("%", TEMPLATE))
            continue
        if "*" in field.size:
            return AuthoredText(text, UNKNOWN)
        name, spec = field.name, str.__str__(template)[field.start : field.end]
        value = next(given) if name is None else cast("Mapping[str, object]", values)[name]
        argument = wrap(value)
        shown = str.__mod__(spec, {name: argument} if name is not None else (argument,))
        as_it_is = str(argument) if isinstance(value, str) else None
        if shown == as_it_is:
            pieces.append(AuthoredText(shown, authors_of(as_it_is)))
        elif field.kind == "c" and not isinstance(value, str):  # a number, which becomes a letter
            pieces.append(AuthoredText(shown, UNKNOWN))
        else:
            pieces.append(derive(shown, value))
    pieces.append(whole[end:])
    joined = AuthoredText("", TEMPLATE).join(pieces)
    return joined if joined == text else AuthoredText(text, UNKNOWN)


def _is_nobodys(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, AuthoredText)


def _authors(value: object) -> Iterator[str]:
    """The authors of every text inside a value; UNKNOWN for a value that may show anything."""
    if isinstance(value, str):
        authors = authors_of(value)
        yield authors if authors.strip(authors[:1]) else authors[:1]
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _authors(name)
            yield from _authors(member)
    elif isinstance(value, (list, tuple, *VIEWS)):
        for member in value:
            yield from _authors(member)
    elif not isinstance(value, _WORDLESS):
        yield UNKNOWN
