"""Progress: short logs in CI, a bar on a terminal, and the time left."""

import sys
import threading
from contextlib import contextmanager

import pytest

from pyc.cli import cli
from pyc.commands.count_progress import CountProgress
from pyc.commands.progress import PlainProgress, amount_text, report_progress
from pyc.commands.status_line import is_quiet
from pyc.commands.transfer_progress import TransferProgress
from pyc.passes.build_events import BuildEvent

EVENTS = (
    BuildEvent("ingest", 0, 0),
    BuildEvent("compile", 0, 0),
    *(BuildEvent("emit", done, 1000) for done in range(0, 1001, 10)),
    BuildEvent("done", 1000, 1000),
)


@pytest.mark.parametrize(
    ("event", "elapsed_s", "text"),
    [
        (BuildEvent("compile", 0, 0), 5, ""),
        (BuildEvent("emit", 0, 2_000_000), 5, "0% of 2 MB"),
        (BuildEvent("emit", 500_000, 2_000_000), 20, "25% of 2 MB, 1:00 left"),
        (BuildEvent("emit", 2_000_000, 2_000_000), 20, "100% of 2 MB, 0.0 s left"),
    ],
)
def test_amount(event, elapsed_s, text):
    assert amount_text(event, elapsed_s) == text


def test_a_line_a_stage_and_one_in_ten_seconds(capsys):
    time_s = 0.0

    def clock():
        nonlocal time_s
        time_s += 0.5
        return time_s

    progress = PlainProgress(clock)
    for event in EVENTS:
        progress(event)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["pyc: reading headers", "pyc: compiling programs", "pyc: writing weights"]
    assert lines[3] == "pyc: writing weights: 20% of 1 kB, 40 s left"
    assert len(lines) == 3 + 5


@contextmanager
def called(*options):
    """As in a command that was called with these options of pyc."""
    with cli.make_context("pyc", [*options, "build"]) as whole:
        whole.invoke(cli.callback, **whole.params)
        yield


@pytest.mark.parametrize(("options", "lines"), [((), 9), (("-q",), 1), (("--quiet",), 1)])
def test_quiet_shows_notes_and_no_progress(options, lines, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with called(*options):
        with report_progress() as progress:
            for event in [*EVENTS, BuildEvent("emit", 0, 0, note="made the signing key")]:
                progress(event)
        transfer = TransferProgress(100)
        transfer.LINE_EVERY_S = 0.0
        thread = threading.Thread(target=lambda: [transfer.advance(10) for _ in range(5)])
        thread.start()
        thread.join()
    assert not is_quiet()
    err = capsys.readouterr().err.splitlines()
    assert len(err) == lines and "pyc: made the signing key" in err


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with report_progress() as progress:
        for event in EVENTS:
            progress(event)
    printed = capsys.readouterr()
    assert "writing weights" in printed.err
    assert "100% of 1 kB" in printed.err
    assert printed.out == ""


COUNTED = "pyc: 512 of 1024 texts, "


@pytest.mark.parametrize(
    ("options", "out_is_terminal", "appears", "said"),
    [
        ((), False, True, COUNTED), ((), False, False, COUNTED), ((), True, False, COUNTED), ((), True, True, ""),
        (("-q",), False, True, ""),
    ],
)  # fmt: skip
def test_what_is_counted_is_told_where_nobody_sees_it(options, out_is_terminal, appears, said, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out_is_terminal)
    monkeypatch.setattr(CountProgress, "LINE_EVERY_S", 0.0)
    with called(*options), CountProgress("texts", 1024, appears=appears) as progress:
        progress.reach(512)
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == (said != "") and (not said or err.endswith(" a second\n"))


def test_the_bar_goes_when_the_build_fails(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    def build():
        with report_progress() as progress:
            progress(EVENTS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert "\x1b[?25h" in capsys.readouterr().err  # the cursor is shown again


def test_a_program_without_standard_error_builds_in_silence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    with report_progress() as progress:
        for event in EVENTS:
            progress(event)
    assert capsys.readouterr().out == ""
