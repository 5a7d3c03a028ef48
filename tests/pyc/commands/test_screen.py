"""What is shown: no text takes over a terminal, and no terminal is too poor for a text."""

import errno
import io
import sys

import pytest

from pyc.commands.screen import Screen, escape_controls, tell


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
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    tell("nobody sees it")
