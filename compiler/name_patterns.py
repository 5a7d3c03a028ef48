"""Regular expressions over names of tensors and modules, matched in time linear in the name.

Patterns come from recipes and from adapters' configurations, and Python's `re` backtracks: `(a+)+!` on a name of 40
letters takes hours, and nothing can interrupt it. A pattern of the subset below becomes a nondeterministic automaton
(Thompson, CACM 11(6), 1968), of which all states are followed at once; the sets of states that occur are kept, so that
a letter costs a look-up (R. Cox, "Regular Expression Matching Can Be Simple And Fast", 2007). Which part matched is not
asked, so the answer is that of `re.match`, greedy or not.

Subset: letters, `.`, classes, `\\d \\s \\w` and their opposites, escaped signs, `|`, groups, `* + ? {m,n}` and their
lazy forms, `^ $ \\A \\Z \\b \\B`, `(?=...)`, `(?!...)`. Refused: backreferences, looking behind, flags, conditions,
atomic groups, possessive repetition, numeric escapes, more than 8 times looking ahead, and more than 1000 states.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache

MAX_CHARACTERS = 1024
MAX_STATES = 1000
MAX_LOOKAHEADS = 8
_MAX_KEPT = 10_000
_FREE_STEPS = 200_000
_STEPS_A_LETTER = 64

_ACCEPT = 0
_COUNT = re.compile(r"\{(?!\})([0-9]*)(,([0-9]*))?\}")
_NAMED = re.compile(r"\(\?P<[^>]*>")
_CLASSES = frozenset("dDsSwW")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}

_SIGNS: tuple[tuple[str, tuple[int, int | None]], ...] = (("*", (0, None)), ("+", (1, None)), ("?", (0, 1)))

Test = Callable[[str], object]
Assertion = Callable[[str, int], bool]


class PatternError(ValueError):
    """A pattern that is not a regular expression, outside the subset, or too large."""


@lru_cache(maxsize=4096)
def name_pattern(text: str) -> NamePattern:
    """Return the compiled pattern; PatternError in words."""
    if len(text) > MAX_CHARACTERS:
        raise PatternError(f"it has {len(text)} characters, expected at most {MAX_CHARACTERS}")
    if text.count("(?=") + text.count("(?!") > MAX_LOOKAHEADS:
        raise PatternError(f"it looks ahead more than {MAX_LOOKAHEADS} times")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # such as [[:alpha:]]: a later Python reads it differently
            re.compile(text)
        return NamePattern(text)
    except FutureWarning as warning:
        reason = str(warning)
        raise PatternError(
            f"{reason[:1].lower()}{reason[1:]}; put \\ before the letter that is meant"
        ) from warning
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from error
    except RecursionError as error:
        raise PatternError("its groups are nested too deeply") from error


class _Budget:
    """Letters that a pattern was given, and steps that it and those inside it took beyond looking up."""

    def __init__(self) -> None:
        self._letters = 0
        self._steps = 0

    def letter(self) -> None:
        self._letters += 1

    def spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _FREE_STEPS + _STEPS_A_LETTER * self._letters:
            raise PatternError("matching it takes too many steps; write it with fewer repetitions")


class NamePattern:
    """A compiled pattern. State 0 accepts; another moves on by a letter, without one, or where an assertion holds."""

    def __init__(self, text: str, budget: _Budget | None = None) -> None:
        self._is_inner = budget is not None
        self._budget = budget or _Budget()
        self._letters: dict[int, tuple[Test, int]] = {}
        self._free: dict[int, tuple[int, ...]] = {}
        self._guarded: dict[int, tuple[Assertion, int]] = {}
        self._inner: dict[str, NamePattern] = {}
        self._count = 1
        self._kept: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._start = _Parser(text, self).whole()

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches at the start of `name`, as `re.match`.

        Raises PatternError when the pattern keeps taking far more steps than letters.
        """
        return self._matches(name, 0)

    def _matches(self, name: str, start: int) -> bool:
        states, _ = self._reached((self._start,), name, start)
        for position in range(start, len(name)):
            if _ACCEPT in states or not states:
                break
            if not self._is_inner:
                self._budget.letter()
            key = (states, name[position])
            following = self._kept.get(key)
            if following is None:
                following, is_fixed = self._step(states, name, position)
                if is_fixed:
                    if len(self._kept) >= _MAX_KEPT:
                        self._kept.clear()
                    self._kept[key] = following
            states = following
        return _ACCEPT in states

    def _step(self, states: frozenset[int], name: str, position: int) -> tuple[frozenset[int], bool]:
        moves = (self._letters[state] for state in states if state != _ACCEPT)
        return self._reached([after for test, after in moves if test(name[position])], name, position + 1)

    def _reached(self, states: Iterable[int], name: str, position: int) -> tuple[frozenset[int], bool]:
        """Return the states that accept or want a letter, from `states` without one; and whether that is so anywhere.

        Where it is not, an assertion was asked, and the position decides.
        """
        waiting = list(states)
        seen = set(waiting)
        is_fixed = True
        while waiting:
            state = waiting.pop()
            following = self._free.get(state, ())
            if state in self._guarded:
                is_fixed = False
                holds, after = self._guarded[state]
                following = (after,) if holds(name, position) else ()
            for after in following:
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)
        self._budget.spend(len(seen) if is_fixed else 8 + len(seen) // 8)
        return frozenset(state for state in seen if state == _ACCEPT or state in self._letters), is_fixed

    # What the parser builds with; states are made from the end of the pattern to its start.

    def letter(self, test: Test, after: int) -> int:
        """Return a state that moves to `after` by a letter that passes `test`."""
        state = self._new()
        self._letters[state] = (test, after)
        return state

    def either(self, *after: int) -> int:
        """Return a state that moves to any of `after` without a letter."""
        state = self._new()
        self._free[state] = after
        return state

    def loop(self, body: Callable[[int], int], after: int) -> int:
        """Return a state that goes through `body` any number of times, then to `after`."""
        state = self._new()
        self._free[state] = (body(state), after)
        return state

    def guard(self, holds: Assertion, after: int) -> int:
        """Return a state that moves to `after` where `holds` is true of the name and the position."""
        state = self._new()
        self._guarded[state] = (holds, after)
        return state

    def _new(self) -> int:
        self._count += 1
        if self._count > MAX_STATES:
            raise PatternError(f"it is too large: it needs more than {MAX_STATES} states; shorten its repetitions")
        return self._count - 1

    def lookahead(self, text: str, wanted: bool) -> Assertion:
        """Return whether the pattern `text` matches at a position, or with `wanted` false whether it does not."""
        if text not in self._inner:
            self._inner[text] = NamePattern(text, self._budget)
        inner = self._inner[text]
        known: dict[int, bool] = {}
        last = ""

        def holds(name: str, position: int) -> bool:
            nonlocal last
            if name != last:
                known.clear()
                last = name
            if position not in known:
                known[position] = inner._matches(name, position)
            return known[position] == wanted

        return holds


Piece = Callable[[int], int]


class _Parser:
    """Reads a pattern that `re` accepts. A piece is a function from the state after it to the state before it."""

    def __init__(self, text: str, pattern: NamePattern) -> None:
        self._text = text
        self._at = 0
        self._pattern = pattern

    def whole(self) -> int:
        """Return the first state."""
        return self._alternatives()(_ACCEPT)

    def _alternatives(self) -> Piece:
        branches = [self._sequence()]
        while self._takes("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        return lambda after: self._pattern.either(*(branch(after) for branch in branches))

    def _sequence(self) -> Piece:
        pieces: list[Piece] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            pieces.append(self._repeated(self._atom()))

        def build(after: int) -> int:
            for piece in reversed(pieces):
                after = piece(after)
            return after

        return build

    def _repeated(self, piece: Piece) -> Piece:
        bounds = self._bounds()
        if bounds is None:
            return piece
        self._takes("?")
        if self._takes("+"):
            raise PatternError("possessive repetition is not supported; leave out the second +")
        least, most = bounds
        if max(least, most or 0) > MAX_STATES:
            raise PatternError(f"it is too large: it repeats more than {MAX_STATES} times")

        def build(after: int) -> int:
            first = self._pattern.loop(piece, after) if most is None else after
            for _ in range(0 if most is None else most - least):
                first = self._pattern.either(piece(first), after)
            for _ in range(least):
                first = self._pattern.either(piece(first))
            return first

        return build

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in _SIGNS:
            if self._takes(sign):
                return bounds
        match = _COUNT.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        least = int(match[1] or 0)
        most = (int(match[3]) if match[3] else None) if match[2] else least
        return least, most

    def _atom(self) -> Piece:
        sign = self._text[self._at]
        if sign == "(":
            return self._group()
        if sign == "\\":
            return self._escape()
        if sign == "[":
            return self._class()
        self._at += 1
        if sign == ".":
            return self._letter(lambda letter: letter != "\n")
        if sign == "^":
            return self._guard(lambda name, position: position == 0)
        if sign == "$":
            return self._guard(lambda name, position: name[position:] in ("", "\n"))
        return self._letter(sign.__eq__)

    def _letter(self, test: Test) -> Piece:
        return lambda after: self._pattern.letter(test, after)

    def _guard(self, holds: Assertion) -> Piece:
        return lambda after: self._pattern.guard(holds, after)

    def _escape(self) -> Piece:
        text = self._text[self._at : self._at + 2]
        self._at += 2
        sign = text[1]
        if sign in _CLASSES:
            return self._letter(re.compile(text).match)
        if sign in _CONTROLS:
            return self._letter(_CONTROLS[sign].__eq__)
        if sign == "A":
            return self._guard(lambda name, position: position == 0)
        if sign == "Z":
            return self._guard(lambda name, position: position == len(name))
        if sign in "bB":
            edge = re.compile(text)
            return self._guard(lambda name, position: edge.match(name, position) is not None)
        if sign.isalnum():
            raise PatternError(f"{text} is not supported")
        return self._letter(sign.__eq__)

    def _class(self) -> Piece:
        end = self._at + 1
        end += self._text[end] == "^"
        end += self._text[end] == "]"
        while self._text[end] != "]":
            end += 2 if self._text[end] == "\\" else 1
        text = self._text[self._at : end + 1]
        self._at = end + 1
        return self._letter(re.compile(text).match)

    def _group(self) -> Piece:
        for opening, wanted in (("(?=", True), ("(?!", False)):
            if self._text.startswith(opening, self._at):
                return self._lookahead(wanted)
        named = _NAMED.match(self._text, self._at)
        if named is not None:
            self._at = named.end()
        elif self._text.startswith("(?:", self._at):
            self._at += 3
        elif self._text.startswith("(?", self._at):
            raise PatternError(f"{self._text[self._at : self._at + 4]!r} is not supported; of groups starting with (?, "
                               "(?:...), (?=...) and (?!...) are")  # fmt: skip
        else:
            self._at += 1
        inner = self._alternatives()
        self._at += 1
        return inner

    def _lookahead(self, wanted: bool) -> Piece:
        self._at += 3
        start = self._at
        self._alternatives()  # only to find its end
        text = self._text[start : self._at]
        self._at += 1
        return lambda after: self._pattern.guard(self._pattern.lookahead(text, wanted), after)

    def _takes(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        self._at += len(sign) * found
        return found
