"""What one match of a regular expression may hold: whether some path through it reads characters of two kinds.

A path is a way from the beginning of an expression to its end. The kinds of characters that it reads are bits of a
number. Of a sequence every path of one part goes on with every path of the next, and a choice has the paths of all.
What a part that matches one character (a class, an escape, a letter) reads is what the caller says. Expressions are
those that regex_shape.py lets pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from pyc.runtime.text.regex_shape import GROUP, RegexParser

_MANY = 1 << 20
_OPTIONS = re.compile(r"\(\?([A-Za-z]*)(?:-[imx]+)?[:)]")
_ZERO_WIDTH = frozenset([r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G", "^", "$"])
_LOOKAROUNDS = frozenset(["(?=", "(?!", "(?<=", "(?<!"])


class _Paths(NamedTuple):
    """The kinds that each path reads; of all paths, the most characters, and the most that are of any kind."""

    kinds: frozenset[int]
    length: int
    of_a_kind: int


_EMPTY = _Paths(frozenset([0]), 0, 0)


def match_kinds(pattern: str, kinds_of: Callable[[str], int], most_ahead: int) -> frozenset[int]:
    """Return the kinds of characters that matches of `pattern` consume, a number for each path.

    Raises RegexError for a pattern of which that cannot be told: one with options that change more than the case, or
    with a lookaround that may go on behind `most_ahead` characters, of which two or more are of any kind.
    """
    parser = _PathsParser(pattern, kinds_of, most_ahead)
    found = parser.alternatives()
    if parser.position < len(pattern):
        raise parser.fault("a ')' too many")
    return found.kinds


class _PathsParser(RegexParser):
    def __init__(self, pattern: str, kinds_of: Callable[[str], int], most_ahead: int) -> None:
        super().__init__(pattern)
        self._kinds_of = kinds_of
        self._most_ahead = most_ahead

    def alternatives(self) -> _Paths:
        """Everything up to the end of the group."""
        found = self._sequence()
        while self.next() == "|":
            self.position += 1
            other = self._sequence()
            found = _Paths(found.kinds | other.kinds, *map(max, found[1:], other[1:]))
        return found

    def _sequence(self) -> _Paths:
        found = _EMPTY
        while self.next() not in ("", "|", ")"):
            part = self._group() if self.next() == "(" else self._character()
            least, most = self.repeat()
            kinds = _repeated(part.kinds) if most > 1 else part.kinds
            if least == 0:
                kinds |= _EMPTY.kinds
            times = min(most, _MANY)
            found = _Paths(
                frozenset(one | other for one in found.kinds for other in kinds),
                min(_MANY, found.length + part.length * times),
                min(_MANY, found.of_a_kind + part.of_a_kind * times),
            )
        return found

    def _character(self) -> _Paths:
        start = self.position
        self.skip_character()
        part = self.pattern[start : self.position]
        if part in _ZERO_WIDTH:
            return _EMPTY
        kinds = self._kinds_of(part)
        return _Paths(frozenset([kinds]), 1, int(kinds != 0))

    def _group(self) -> _Paths:
        opening = GROUP.match(self.pattern, self.position)
        assert opening is not None  # "(" alone matches
        text = opening[0]
        options = _OPTIONS.fullmatch(text)
        if options is not None and (options[1].strip("i") or (text.endswith(")") and self.position > 0)):
            raise self.fault("options that are not supported")
        if text == "(" and self.pattern[self.position + 1 : self.position + 2] in ("?", "*"):
            raise self.fault("a kind of group that is not supported")
        self.position = opening.end()
        if text.endswith(")"):
            return _EMPTY
        found = self.alternatives()
        if self.next() != ")":
            raise self.fault("a group without its end")
        self.position += 1
        if text not in _LOOKAROUNDS:
            return found
        if found.length > self._most_ahead and found.of_a_kind > 1:
            raise self.fault("a lookaround without end")
        return _EMPTY

    def next(self) -> str:
        """The character at `position`; "" at the end."""
        return self.pattern[self.position : self.position + 1]


def _repeated(kinds: frozenset[int]) -> frozenset[int]:
    """What several paths in turn read."""
    joined = kinds
    while True:
        longer = joined | {one | other for one in joined for other in kinds}
        if longer == joined:
            return joined
        joined = longer
