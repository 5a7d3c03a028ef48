"""Tables: aligned in a log, drawn on a terminal, and safe to print."""

import sys

from pyc.commands.tables import plain_table, print_table


def test_plain():
    rows = [("a", "1"), ("longer", "1000")]
    assert plain_table("title", ("name", "n"), rows, right=(1,)) == [
        "title",
        "  name       n",
        "  a          1",
        "  longer  1000",
        "",
    ]


def test_no_rows():
    assert plain_table("title", ("name",), []) == ["title", "  name", ""]


def test_control_characters_are_escaped(capsys):
    print_table("t", ("name",), [("a\x1b[31mb\n",)])
    assert capsys.readouterr().out == "t\n  name\n  a\\x1b[31mb\\n\n\n"


def test_a_terminal_gets_rules_and_no_markup(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table("title", ("name", "n"), [("[bold]a[/bold]", "1")], right=(1,))
    text = capsys.readouterr().out
    assert "─" in text
    assert "[bold]a[/bold]" in text
