"""The comment of a public key's line: what of it counts as a last day that stands in the wrong place (docs/keys.md).

A comment that is one word of letters, digits, `.`, `_` and `-` is a name, as pyc itself writes it, and always taken. In
any other one a word of the end of something, behind which a digit, `=` or `:` stands within four words, is a last day.
Looking for that needs no list of dates' forms, which would never be complete.
"""

from __future__ import annotations

import re

WORDS_BEHIND = 4
LEAST_DAY_LETTERS = 4
_name = re.compile(r"[A-Za-z0-9._-]*")
_not_of_a_name = re.compile(r"[^A-Za-z0-9._-]+")
_tokens = re.compile(
    r"(?P<word>(?<!un)expir|until|valid(?:to|thru|through)"
    r"|(?<![a-z])(?:valid(?:ity|from|for|till|by)?|till)(?![a-z])"
    r"|not[\W_]{0,3}after"
    r"|(?<![a-z])(?:use[\W_]{0,3}by|best[\W_]{0,3}before|(?:last|final|end)[\W_]{0,3}da(?:y|te))(?![a-z]))"
    r"|(?P<short>(?<![a-z])exp(?:date|on)?(?![a-z]))"
    r"|(?P<space> )|(?P<sign>[=:])|(?P<number>\d+(?:[-./]\d+)*)"
)
"""What is looked for in a comment in small letters. `exp` is of an experiment as well: a number of fewer than
LEAST_DAY_LETTERS behind it, as in `exp 1`, is none of a day."""


def clean_comment(text: str) -> str:
    """The comment in one line: without what cannot be seen, and with one blank between words."""
    letters = (letter if letter.isprintable() else " " if letter.isspace() else "" for letter in text)
    return " ".join("".join(letters).split())


def name_of(text: str) -> str:
    """A text as a comment that is always taken: with `-` for what a name may not have."""
    return _not_of_a_name.sub("-", text).strip("-")


def find_last_day(comment: str) -> str | None:
    """What of a clean comment is meant as a last day; None where nothing is. Takes time in proportion to its length."""
    if _name.fullmatch(comment):
        return None
    text, start, is_short, blanks = _small(comment), None, False, 0
    for token in _tokens.finditer(text):
        kind = token.lastgroup
        if kind in ("word", "short"):
            if kind == "word" or start is None or is_short or blanks > WORDS_BEHIND:
                start, is_short, blanks = token.start(), kind == "short", 0
        elif kind == "space":
            blanks += 1
        elif start is not None and blanks <= WORDS_BEHIND and (not is_short or _is_of_a_day(token[0])):
            shown = comment if comment.isascii() else text  # others have letters of several signs
            return shown[start : (text + " ").index(" ", token.start())]
    return None


def _is_of_a_day(mark: str) -> bool:
    """Whether a sign or number says that `exp` before it is of a last day."""
    return mark in ("=", ":") or len(mark) >= LEAST_DAY_LETTERS


def _small(text: str) -> str:
    """A text in small letters, with wide letters and signs as plain ones, and without accents."""
    if text.isascii():
        return text.lower()
    from unicodedata import combining, normalize  # a library that a process need not load for most keys

    # letter by letter, since the order of many accents at one letter takes quadratic time
    plain = "".join(each for letter in text for each in normalize("NFKD", letter) if not combining(each))
    return plain.casefold()
