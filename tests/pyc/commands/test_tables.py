"""Tables: aligned, as wide as the terminal, and safe to print."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.commands.tables import markdown_table, plain_table, print_table


def test_plain():
    rows = [("a", "1"), ("longer", "1000")]
    assert plain_table("title", ("name", "n"), rows, right=(1,)) == [
        "title",
        "  name       n",
        "  a          1",
        "  longer  1000",
        "",
    ]


def test_no_rows_and_no_title():
    assert plain_table("title", ("name",), []) == ["title", "  name", ""]
    assert plain_table("", ("name",), [("a",)]) == ["name", "a", ""]


def test_control_characters_are_escaped(capsys):
    print_table("t", ("name",), [("a\x1b[31mb\n\u202e",)])
    assert capsys.readouterr().out == "t\n  name\n  a\\x1b[31mb\\n\\u202e\n\n"


def test_a_narrow_terminal_breaks_the_widest_column_between_words():
    rows = [("one", "forward 1, 16, 128; prompt 16", "3")]
    assert plain_table("t", ("name", "buckets", "n"), rows, right=(2,), width=28) == [
        "t",
        "  name  buckets            n",
        "  one   forward 1, 16,     3",
        "        128; prompt 16",
        "",
    ]


@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), max_size=5), st.integers(20, 120))
def test_a_line_is_never_wider_than_the_terminal(rows, width):
    lines = plain_table("", ("a", "b"), rows, width=width)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"NO_COLOR": "1"}, {"COLUMNS": "40"}, {"TERM": ""}])
def test_a_terminal_of_any_kind_gets_plain_text_that_fits(variables, monkeypatch, capsys):
    """Without rich, which a base install does not have."""
    for name, value in {"COLUMNS": "80", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table("title", ("name", "n"), [("[bold]a[/bold] " * 8, "1")], right=(1,))
    text = capsys.readouterr().out
    assert "[bold]a[/bold]" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= int(os.environ["COLUMNS"])


def test_markdown():
    lines = markdown_table(("name", "n"), [("a|b\x1b", "1")], right=(1,))
    assert lines == ["| name | n |", "| --- | ---: |", "| a\\|b\\x1b | 1 |"]
