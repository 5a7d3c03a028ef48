"""Text that a template marked as HTML with `safe` or `escape`, and that knows who wrote it.

jinja2's filters `safe`, `escape` and `e` return markupsafe.Markup, with or without automatic escaping: what is joined
to it by `+`, `%`, `.format`, `.join` and `.replace` is escaped, and its methods return Markup again. Markup here does
the same; what is escaped keeps its author. As in jinja2, `~` and output take it for plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import SupportsIndex, cast

import markupsafe

from pyc.runtime.text.authored_text import AuthoredText, authors_of, derive, percent

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"}
_SPECIAL = re.compile("[&<>'\"]")


class Markup(AuthoredText):
    """An AuthoredText that escapes what is joined to it. Its name and its repr are those of markupsafe."""

    __slots__ = ()

    def __str__(self) -> AuthoredText:
        return AuthoredText(str.__str__(self), self.authors)

    def __html__(self) -> Markup:
        return self

    def __repr__(self) -> str:
        return f"Markup({str.__repr__(self)})"

    def __getitem__(self, index: SupportsIndex | slice) -> Markup:
        return mark(str(self)[index])

    def __add__(self, other: str) -> Markup:
        return mark(str(self) + str(escape(other))) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Markup:
        return mark(str(escape(other)) + str(self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Markup:
        return mark(str(self) * times)

    __rmul__ = __mul__

    def __mod__(self, values: object) -> Markup:
        return mark(percent(str(self), values, _Escaped))

    def join(self, parts: Iterable[object], /) -> Markup:
        return mark(str(self).join(map(escape, parts)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Markup:
        return mark(str(self).replace(old, str(escape(new)), count))

    def center(self, width: SupportsIndex, fillchar: str | None = None, /) -> Markup:
        return mark(super().center(width, None if fillchar is None else str(escape(fillchar))))

    def ljust(self, width: SupportsIndex, fillchar: str | None = None, /) -> Markup:
        return mark(super().ljust(width, None if fillchar is None else str(escape(fillchar))))

    def rjust(self, width: SupportsIndex, fillchar: str | None = None, /) -> Markup:
        return mark(super().rjust(width, None if fillchar is None else str(escape(fillchar))))


class _Escaped:
    """One value of `%`, as markupsafe shows it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __getitem__(self, name: str) -> _Escaped:
        return _Escaped(cast("dict[str, object]", self._value)[name])

    def __str__(self) -> str:
        return str(escape(self._value))

    def __repr__(self) -> str:
        return str(escape(repr(self._value)))

    def __int__(self) -> int:
        return int(cast("int", self._value))

    def __float__(self) -> float:
        return float(cast("float", self._value))


def mark(text: str) -> Markup:
    """`text`, taken as HTML as it is."""
    return text if isinstance(text, Markup) else Markup(text, authors_of(text))


def escape(value: object) -> Markup:
    """`value` as text of HTML: `&`, `<`, `>` and quotes become entities. Markup stays as it is."""
    if isinstance(value, Markup):
        return value
    if not isinstance(value, str):
        value = derive(str(value), value)
    authors = authors_of(value)
    escaped = str(markupsafe.escape(str.__str__(value)))
    if not authors.strip(authors[:1]):  # all of one author
        return Markup(escaped, authors[:1])
    wrote: list[str] = []
    end = 0
    for special in _SPECIAL.finditer(value):
        wrote += (authors[end : special.start()], authors[special.start()] * len(_ENTITIES[special[0]]))
        end = special.end()
    return Markup(escaped, "".join([*wrote, authors[end:]]))


def escaped_length(text: str) -> int:
    """The characters of `text` once it is escaped."""
    if isinstance(text, Markup):
        return len(text)
    return len(text) + sum((len(entity) - 1) * text.count(special) for special, entity in _ENTITIES.items())


def _keep_mark(name: str) -> None:
    """Gives Markup the method of AuthoredText, with Markup for each text that it returns."""
    method = getattr(AuthoredText, name)

    def marked(self: Markup, *args: object, **kwargs: object) -> object:
        result = method(str(self), *args, **kwargs)
        if isinstance(result, str):
            return mark(result)
        marks: dict[int, Markup] = {}  # parts that are alike are one text
        return type(result)([marks.get(id(part)) or marks.setdefault(id(part), mark(part)) for part in result])

    marked.__name__ = name
    setattr(Markup, name, marked)


for _name in (
    *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"),
    *("splitlines", "lower", "upper", "capitalize", "casefold", "swapcase", "title", "zfill"),
):
    _keep_mark(_name)
