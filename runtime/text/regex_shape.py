"""Whether a regular expression out of a tokenizer.json may be run on any text.

Tokenizers run them on a backtracking engine (Oniguruma), for which `(a+)+b` takes 2^n steps on n letters, and no
Python program can interrupt it. So the shape is checked before: what repeats a group may repeat nothing inside of it
in more than one way. These are refused:

    (a+)+  (a?)*  (a|b)+      a group repeated that itself repeats or chooses
    a*a*                      the same thing repeated without end, twice in a row
    a*b*c*d*                  more than three repetitions without end in one alternative
    \\1  \\k<x>  \\g<x>  (?(1)  what looks back at, or calls, another group

The expressions of GPT-2, Llama 3, Qwen, DeepSeek, Mistral and their like need none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARACTERS = 4096
MAX_DEPTH = 16
MAX_ENDLESS = 3
_MANY = 64  # a repetition of more than this counts as without end

GROUP = re.compile(r"\((?:\?(?:#[^)]*\)|[imxWDSPy]*(?:-[imx]+)?[:)]|=|!|>|<=|<!|<[A-Za-z_]\w*>|'[A-Za-z_]\w*'|:))?")
_REPEAT = re.compile(r"[*+?][+?]?|\{(?:\d+(?:,\d*)?|,\d+)\}\??")
_ESCAPE = re.compile(r"\\(?:[pPxo]\{[^}]*\}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|.)", re.DOTALL)


class RegexError(ValueError):
    """A regular expression that is not run; the text says why."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a part of an expression does: match in several ways, and repetitions without end in one alternative."""

    varies: bool
    endless: int


def check_regex(pattern: str) -> None:
    """Raise RegexError for a pattern that may take more than a few steps a character."""
    if len(pattern) > MAX_CHARACTERS:
        raise RegexError(f"a regular expression of {len(pattern)} characters, expected at most {MAX_CHARACTERS}")
    parser = _ShapeParser(pattern)
    parser.alternatives(0)
    if parser.position < len(pattern):
        raise parser.fault("a ')' too many")


class RegexParser:
    """Goes through an expression part by part; `position` is behind what was read."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0

    def fault(self, what: str) -> RegexError:
        """An error that shows the place."""
        shown = self.pattern[max(0, self.position - 30) : self.position + 10]
        return RegexError(f"the regular expression has {what} near {shown!r}")

    def skip_character(self) -> None:
        """Go behind a part that matches one character: a class, an escape, a letter. Raises RegexError."""
        character = self.pattern[self.position]
        if character == "[":
            self._character_class(0)
        elif character == "\\":
            self._escape()
        elif character in "*+?":
            raise self.fault("a repetition of nothing, or of a repetition,")
        else:
            self.position += 1

    def _character_class(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self.fault(f"classes nested more than {MAX_DEPTH} deep")
        self.position += 1
        if self.pattern[self.position : self.position + 1] == "^":
            self.position += 1
        first = self.position
        while self.position < len(self.pattern):
            character = self.pattern[self.position]
            if character == "]" and self.position > first:
                self.position += 1
                return
            if character == "[":
                self._character_class(depth + 1)
            elif character == "\\":
                self._escape()
            else:
                self.position += 1
        raise self.fault("a character class without its end")

    def _escape(self) -> None:
        escape = _ESCAPE.match(self.pattern, self.position)
        if escape is None:
            raise self.fault("a backslash at its end")
        if escape[0][1] in "123456789kg":
            raise self.fault("a reference to a group, which is not supported,")
        self.position = escape.end()

    def repeat(self) -> tuple[int, int]:
        """How often the atom just read may come: least and most."""
        repeat = _REPEAT.match(self.pattern, self.position)
        if repeat is None:
            return 1, 1
        self.position = repeat.end()
        if _REPEAT.match(self.pattern, self.position) is not None:
            raise self.fault("a repetition of a repetition, which can take for ever,")
        text = repeat[0]
        if text[0] != "{":
            return (1 if text[0] == "+" else 0), (1 if text[0] == "?" else 1 << 30)
        low, comma, high = text.rstrip("?")[1:-1].partition(",")
        least = int(low[:9] or 0)
        return least, int(high[:9]) if high else (1 << 30 if comma else least)


class _ShapeParser(RegexParser):
    """What the parts of an expression do."""

    def alternatives(self, depth: int) -> _Shape:
        """Everything up to the end of the group."""
        if depth > MAX_DEPTH:
            raise self.fault(f"groups nested more than {MAX_DEPTH} deep")
        shape = self._sequence(depth)
        while self.pattern[self.position : self.position + 1] == "|":
            self.position += 1
            other = self._sequence(depth)
            shape = _Shape(True, max(shape.endless, other.endless))
        return shape

    def _sequence(self, depth: int) -> _Shape:
        varies, endless, previous = False, 0, ""
        while self.position < len(self.pattern) and self.pattern[self.position] not in "|)":
            start = self.position
            inner = self._atom(depth)
            atom = self.pattern[start : self.position]
            least, most = self.repeat()
            if most > 1 and inner.varies:
                raise self.fault("a repeated group that itself repeats or chooses, which can take for ever,")
            is_endless = most > _MANY
            if is_endless and atom == previous:
                raise self.fault(f"{atom!r} repeated without end twice in a row, which takes too long,")
            previous = atom if is_endless else ""
            varies = varies or inner.varies or least != most
            endless += inner.endless + is_endless
            if endless > MAX_ENDLESS:
                raise self.fault(f"more than {MAX_ENDLESS} repetitions without end in one alternative")
        return _Shape(varies, endless)

    def _atom(self, depth: int) -> _Shape:
        if self.pattern[self.position] == "(":
            return self._group(depth)
        self.skip_character()
        return _Shape(False, 0)

    def _group(self, depth: int) -> _Shape:
        opening = GROUP.match(self.pattern, self.position)
        assert opening is not None  # "(" alone matches
        text = opening[0]
        if text == "(" and self.pattern[self.position + 1 : self.position + 2] in ("?", "*"):
            raise self.fault("a kind of group that is not supported")
        self.position = opening.end()
        if text.endswith(")") and len(text) > 1:  # a comment, or options for what follows
            return _Shape(False, 0)
        shape = self.alternatives(depth + 1)
        if self.pattern[self.position : self.position + 1] != ")":
            raise self.fault("a group without its end")
        self.position += 1
        return _Shape(False, shape.endless) if text == "(?>" else shape
