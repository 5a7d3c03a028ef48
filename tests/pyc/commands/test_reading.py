"""Texts from files and standard input: each wrong one is a usage error that says why."""

import os
import sys
import threading

import click
import pytest

from pyc.commands import reading
from pyc.commands.reading import read_lines, read_text
from pyc.runtime.text.lines import lines_of


def test_line_ends_are_newlines(tmp_path):
    file = tmp_path / "text"
    file.write_bytes("a\r\nb\rc\n\x0bé\u2028".encode())
    assert read_text(file, waits_for="x") == "a\nb\rc\n\x0bé\u2028"


def test_a_byte_order_mark_is_left_out_where_a_text_begins(tmp_path):
    file = tmp_path / "text"
    file.write_bytes("\ufeffa\n\ufeffb".encode())
    assert read_text(file, waits_for="x") == "a\n\ufeffb"
    assert list(read_lines(file, waits_for="x")) == ["a", "\ufeffb"]
    file.write_bytes("\ufeffa".encode() + b"\xff")
    with pytest.raises(click.UsageError, match="not UTF-8 text at byte 4"):
        read_text(file, waits_for="x")


def test_a_pipe_by_name(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("from a pipe"))
    writer.start()
    assert read_text(pipe, waits_for="x") == "from a pipe"
    writer.join()


def test_standard_input_is_utf8_whatever_the_locale(tmp_path, monkeypatch):
    file = tmp_path / "text"
    file.write_text("é", encoding="utf-8")
    for path in (None, reading.Path("-")):
        with file.open(encoding="ascii") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert read_text(path, waits_for="x") == "é"


@pytest.mark.parametrize(
    "text", ["", "\n", "a", "a\r\n\r\nb", "a\rb\r\r\n", "a\u2028b\x0bc\x0cd\x1ce\x85f\n\n"], ids=ascii
)
def test_lines_are_those_of_the_whole_text(text, tmp_path):
    file = tmp_path / "text"
    file.write_bytes(text.encode())
    assert list(read_lines(file, waits_for="x")) == lines_of(text)


def test_lines_come_one_by_one(tmp_path, monkeypatch):
    file = tmp_path / "text"
    file.write_bytes("a\r\n\nb\u2028\x0b\x85\n\nlast".encode())
    assert list(read_lines(file, waits_for="x")) == ["a", "", "b\u2028\x0b\x85", "", "last"]
    file.write_bytes(b"")
    assert list(read_lines(file, waits_for="x")) == []
    file.write_bytes(b"first\nab\xff\n")
    lines = read_lines(file, waits_for="x")
    assert next(lines) == "first"
    with pytest.raises(click.UsageError, match="text: line 2 is not UTF-8 text at its byte 2"):
        next(lines)
    monkeypatch.setattr(reading, "MAX_TEXT_BYTES", 4)
    with pytest.raises(click.UsageError, match="line 1 has more than 4 bytes"):
        next(read_lines(file, waits_for="x"))


def test_refusals(tmp_path, monkeypatch):
    file = tmp_path / "text"
    file.write_bytes(b"ab\xff")
    with pytest.raises(click.UsageError, match="text: not UTF-8 text at byte 2"):
        read_text(file, waits_for="x")
    monkeypatch.setattr(reading, "MAX_TEXT_BYTES", 2)
    with pytest.raises(click.UsageError, match="more than 2 bytes"):
        read_text(file, waits_for="x")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(click.UsageError, match="standard input is closed; expected the prompt"):
        read_text(None, waits_for="the prompt")


def test_a_standard_input_that_is_open_for_writing_only_is_named(monkeypatch):
    with open("/dev/null", "w") as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(click.UsageError, match="standard input is open for writing only; expected the prompt"):
            read_text(None, waits_for="the prompt")
