"""Lines of a text that is there as a whole."""

import pytest

from pyc.runtime.text.lines import lines_of


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\r\nb\rc\x0cd\x1ce\x85f\u2028g\n\nh\n", ["a", "b\rc\x0cd\x1ce\x85f\u2028g", "", "h"]),
    ],
    ids=ascii,
)
def test_two_things_end_a_line(text, lines):
    assert lines_of(text) == lines
