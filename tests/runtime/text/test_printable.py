"""runtime/text/printable.py: what others wrote cannot move the cursor or pass for another name."""

import sys

import pytest

from pyc.runtime.text.printable import printable


def test_what_stands_for_itself_stays():
    text = "model.layers.0: Größe 模型 مرحبا \\x1b is text"
    assert printable(text) == text


def test_controls_of_both_sets_and_formats_are_escaped():
    assert printable("a\x1b[2J\x9b0m\x7f\u202eb\u2066c\u200fd\u2028e\nf") == (
        "a\\x1b[2J\\x9b0m\\x7f\\u202eb\\u2066c\\u200fd\\u2028e\\nf"
    )
    assert printable("a\nb\tc", keep="\n") == "a\nb\\tc"


@pytest.mark.slow
def test_no_letter_gets_through_that_the_terminal_obeys():
    """All of Unicode: C0, C1, separators, formats, surrogates and what is not assigned."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert printable(every).isprintable()
    for first, last in ((0x00, 0x1F), (0x7F, 0x9F), (0x202A, 0x202E), (0x2066, 0x2069), (0xD800, 0xDFFF)):
        assert all(printable(chr(code)).startswith("\\") for code in range(first, last + 1))
