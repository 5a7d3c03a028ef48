"""What is shown: no text takes over a terminal, and no terminal is too poor for a text."""

import ast
import errno
import io
import sys
import unicodedata
from pathlib import Path

import pytest

from pyc import commands
from pyc.commands.screen import Screen, escape_controls, say, tell


class FakeTerminal(io.TextIOWrapper):
    def isatty(self):
        return True


def shown(monkeypatch, kind, text, encoding="utf-8", **options):
    stream = kind(io.BytesIO(), encoding=encoding, newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    Screen().show(text, **options)
    return stream.buffer.getvalue()


def test_controls_are_spelt_out():
    everything = "".join(map(chr, range(0x20))) + "\x7f\x80\x9b\u202e\u2066é\U0001f600\u200d\r\n"
    escaped = escape_controls(everything)
    assert all(letter.isprintable() or letter in "\n\t\u200d" for letter in escaped)
    assert escaped.startswith("\\x00\\x01")
    assert escaped.endswith("\\x1f\\x7f\\x80\\x9b\\u202e\\u2066é\U0001f600\u200d\n")
    assert escape_controls("plain\n\ttext") == "plain\n\ttext"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_terminal_gets_them_spelt_out_and_a_pipe_as_they_are(monkeypatch, encoding):
    assert shown(monkeypatch, FakeTerminal, "a\x1b[2J", encoding) == b"a\\x1b[2J"
    assert shown(monkeypatch, io.TextIOWrapper, "a\x1b[2J\r\n", encoding) == b"a\x1b[2J\r\n"


def test_letters_that_the_stream_lacks(monkeypatch):
    assert shown(monkeypatch, io.TextIOWrapper, "é€\ud800", "latin-1") == b"\xe9\\u20ac\\ud800"
    assert shown(monkeypatch, io.TextIOWrapper, "é€\ud800") == "é€\\ud800".encode()


def test_colours_are_for_terminals_that_have_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert shown(monkeypatch, FakeTerminal, "a", dim=True) == b"\x1b[2ma\x1b[0m"
    assert shown(monkeypatch, io.TextIOWrapper, "a", dim=True) == b"a"
    monkeypatch.setenv("TERM", "dumb")
    assert shown(monkeypatch, FakeTerminal, "a", dim=True) == b"a"


def test_a_closed_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    Screen().show("nobody sees it")


def test_a_full_standard_error(monkeypatch):
    tried = []

    class Full(io.StringIO):
        def write(self, text):
            tried.append(text)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    tell("nobody sees it")
    assert "".join(tried).startswith("nobody sees it")


def test_a_line_of_findings_has_no_controls(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    say("a\x1b]0;owned\x07\u202e\n\u00e9")
    assert stream.buffer.getvalue() == b"a\\x1b]0;owned\\x07\\u202e\\n\\xe9\n"


def test_a_name_that_is_printed_can_be_pasted(monkeypatch):
    """Persian words and emoji are written with joiners, and spaces are many."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    spaces = "".join(filter(lambda letter: unicodedata.category(letter) == "Zs", map(chr, range(0x10000))))
    say(f"\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f4bb{spaces}\u2028\u200b\u2066\x85")
    expected = f"\u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f4bb{spaces}\\u2028\\u200b\\u2066\\x85\n"
    assert stream.buffer.getvalue().decode() == expected


def test_commands_print_lines_by_say():
    """What else they print is JSON, a whole document, or has no word of others in it."""
    for path in Path(commands.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.echo" and node.args:
                (text, *_) = node.args
                assert not isinstance(text, ast.JoinedStr), (path.name, node.lineno)


@pytest.mark.parametrize("command", [("verify",), ("sign",), ("inspect",)], ids=" ".join)
def test_a_name_of_a_file_does_not_take_over_a_terminal(command, pyc, make_artifact, tmp_path):
    artifact = make_artifact().rename(tmp_path / "a\x1b]0;owned\x07\u202e\x9b31m.pyca")
    code, out, err = pyc(*command, artifact)
    assert code == 0 and all(letter.isprintable() or letter == "\n" for letter in out + err)
    assert command == ("inspect",) or "a\\x1b]0;owned\\x07\\u202e\\x9b31m.pyca" in out


@pytest.mark.parametrize("command", ["verify", "sign"])
def test_a_path_that_is_printed_is_that_of_the_file(command, pyc, make_artifact, tmp_path):
    artifact = make_artifact().rename(tmp_path / "a\u200cb\u00a0c\u3000.pyca")
    assert str(artifact) in pyc(command, artifact)[1]
