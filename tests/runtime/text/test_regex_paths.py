"""runtime/text/regex_paths.py: which kinds of characters one match reads, n of kind 1 and a of kind 2."""

import pytest

from pyc.runtime.text.regex_paths import match_kinds
from pyc.runtime.text.regex_shape import RegexError


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        ("na", {3}),
        ("n|a", {1, 2}),
        ("(?:n|a)", {1, 2}),
        ("(?:n|a)+", {1, 2, 3}),
        ("(?:n|a){1}", {1, 2}),
        ("n?a", {2, 3}),
        ("n(?!a)", {1}),
        ("n(?=ax{9})", {1}),
        ("(?>n*)x|a\\b", {0, 1, 2}),
        ("[^n]$", {0}),
        ("(?i:a)", {2}),
    ],
)
def test_kinds_of_paths(pattern: str, kinds: set[int]) -> None:
    assert match_kinds(pattern, lambda part: {"n": 1, "a": 2}.get(part, 0), 32) == kinds


@pytest.mark.parametrize("pattern", ["n(?=[^x]*a)", "a(?i)n|x", "(?m:.)", "(?x: n )", "(?=(?:na){40})", "(", "n)"])
def test_what_cannot_be_told(pattern: str) -> None:
    with pytest.raises(RegexError):
        match_kinds(pattern, lambda part: {"n": 1, "a": 2, "[^x]": 3}.get(part, 0), 32)
