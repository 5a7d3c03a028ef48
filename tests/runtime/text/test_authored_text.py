"""AuthoredText does what str does, and each character keeps its author."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.filters import do_indent, do_striptags

from pyc.runtime.text.authored_text import CALLER, TEMPLATE, AuthoredText
from pyc.runtime.text.chat.filters import BUILTIN_FILTERS

LETTERS = st.text("aB \n\r\t\u2028é<", max_size=12)
CALLS = {
    "center": st.tuples(st.integers(-2, 20), st.sampled_from(["x", "é"])),
    "ljust": st.tuples(st.integers(-2, 20), st.sampled_from(["x", "é"])),
    "rjust": st.tuples(st.integers(-2, 20), st.sampled_from(["x", "é"])),
    "split": st.one_of(st.tuples(), st.tuples(st.sampled_from(["a", "B ", None]), st.integers(-1, 3))),
    "rsplit": st.one_of(st.tuples(), st.tuples(st.sampled_from(["a", "B ", None]), st.integers(-1, 3))),
    "splitlines": st.tuples(st.booleans()),
    "replace": st.tuples(st.sampled_from(["a", "aB", "B"]), st.text("aBx", max_size=3), st.integers(-1, 3)),
    "strip": st.one_of(st.tuples(), st.tuples(st.sampled_from(["a", " B"]))),
    "partition": st.tuples(st.sampled_from(["a", "B "])),
    "rpartition": st.tuples(st.sampled_from(["a", "B "])),
}


def authored(text: str) -> AuthoredText:
    """Each character with an author of its own: that of a template, then a caller, in turn."""
    return AuthoredText(text, "".join(TEMPLATE if index % 2 else CALLER for index in range(len(text))))


@pytest.mark.parametrize("name", CALLS)
@given(st.data())
def test_methods_are_those_of_str(name: str, data: st.DataObject) -> None:
    text, args = data.draw(LETTERS), data.draw(CALLS[name])
    got, wanted = getattr(authored(text), name)(*args), getattr(text, name)(*args)
    assert got == wanted
    for part in [got] if isinstance(got, str) else got:
        assert isinstance(part, AuthoredText)
        assert len(part.authors) == len(part)


@given(LETTERS)
def test_letters_and_lines_have_the_authors_that_they_had(text: str) -> None:
    whole = authored(text)
    assert [(letter, letter.authors) for letter in whole] == list(zip(text, whole.authors, strict=True))
    assert "".join(part.authors for part in whole.splitlines(True)) == whole.authors
    for padded in (whole.center(20, "x"), whole.ljust(20, "x"), whole.rjust(20, "x")):
        at = padded.index(text)
        assert padded.authors[at : at + len(text)] == whole.authors


@given(st.text("<>!-a &lt;\n", max_size=20))
def test_striptags_is_that_of_jinja2(text: str) -> None:
    assert BUILTIN_FILTERS["striptags"][0](authored(text)) == do_striptags(text)


@given(LETTERS, st.sampled_from([0, 2, "> "]), st.booleans(), st.booleans())
def test_indent_is_that_of_jinja2(text: str, width: int | str, first: bool, blank: bool) -> None:
    assert BUILTIN_FILTERS["indent"][0](authored(text), width, first, blank) == do_indent(text, width, first, blank)
