"""pyc/streams.py: closed, full, ASCII and non-blocking streams change no exit code, and lost output is no success."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from pyc import streams

PROGRAM = """
import sys, types, click
from pyc import cli
module = types.ModuleType("probe")

@click.command()
@click.argument("what")
def command(what):
    if what == "fail":
        from pyc.runtime.errors import ArtifactError
        raise ArtifactError("no \\u00e9 \\udcff")
    if what == "verdict":
        from pyc.streams import courtesy
        courtesy("intact \\u00e9")
        return
    click.echo("caf\\u00e9 \\udcff")
    print("\\u4e2d\\u6587")
    click.echo("told \\u00e9", err=True)

module.command = command
sys.modules["probe"] = module
cli.COMMANDS["probe"] = cli.Command("probe:command", "")
from pyc.process import entry
entry()
"""


def shell(redirection: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`pyc probe ...` with a redirection as a shell has it."""
    command = ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, check=False, env={**os.environ, **environment})


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["", "2>&-", "2>/dev/full", "2>/dev/null", "<&-", "<&- 2>&-"])
def test_standard_error_is_not_part_of_the_verdict(redirection):
    assert shell(redirection, "probe", "fail").returncode == 8
    assert shell(redirection, "probe", "verdict").returncode == 0
    told = shell(redirection, "probe", "tell", PYTHONIOENCODING="utf-8")
    assert (told.returncode, told.stdout.decode()) == (0, "café \\udcff\n中文\n")
    assert shell(redirection, "probe").returncode == 2  # click's own message
    assert shell(redirection, "--version").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("redirection", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left")])
def test_output_that_is_lost_is_no_success(redirection, why):
    for arguments in (("probe", "tell"), ("--version",), ("--help",)):
        result = shell(redirection, *arguments)
        assert result.returncode == 74
        assert f"pyc: error: standard output: {why}" in result.stderr.decode()
    assert shell(redirection, "probe", "verdict").returncode == 0
    assert shell(redirection, "probe", "fail").returncode == 8
    assert shell(f"{redirection} 2>&-", "probe", "tell").returncode == 74


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    ],
)
def test_letters_that_an_encoding_lacks_come_as_escapes(environment):
    told = shell("", "probe", "tell", **environment)
    assert told.returncode == 0
    assert told.stdout.startswith(b"caf")
    assert told.stderr.startswith(b"told")
    failed = shell("", "probe", "fail", **environment)
    assert failed.returncode == 8
    assert failed.stderr.startswith(b"pyc: error: no ")


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path: Path):
    code = (
        "import os\nfrom pyc import streams\nstreams.take_over()\n"
        f"number = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY)\nos._exit(number > 2)"
    )
    command = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, check=False).returncode == 1


LATE_INPUT = """
import os
reading, writing = os.pipe()
os.dup2(reading, 0)
os.set_blocking(0, False)
from pyc import streams
streams.take_over()
pieces = [b"def f(a):\\n", b"    ret", b"urn a\\n"]
def wait(descriptor, event):
    os.write(writing, pieces.pop(0)) if pieces else os.close(writing)
streams._wait = wait
from pyc.commands.reading import read_lines, read_text
found = list(read_lines(None, waits_for="")) if {by_lines} else read_text(None, waits_for="")
print(repr(found), len(pieces), flush=True)
"""

SLOW_READER = """
import os
reading, writing = os.pipe()
os.dup2(writing, 1)
os.set_blocking(1, False)
from pyc import streams
streams.take_over()
taken = []
streams._wait = lambda descriptor, event: taken.append(os.read(reading, 1000))
text = "line\\n" * 50_000
print(text, end="", flush=True)
os.close(1), os.close(writing)
while piece := os.read(reading, 1 << 20):
    taken.append(piece)
os.write(2, b"whole" if b"".join(taken) == text.encode() and len(taken) > 9 else b"%d of them" % len(taken))
"""


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("by_lines", [False, True])
def test_a_non_blocking_input_that_pauses_is_not_at_its_end(by_lines: bool):
    expected = ["def f(a):", "    return a"] if by_lines else "def f(a):\n    return a\n"
    done = run_code(LATE_INPUT.replace("{by_lines}", str(by_lines)))
    assert (done.stdout, done.stderr) == (f"{expected!r} 0\n", "")


def test_a_non_blocking_output_waits_for_its_reader():
    assert run_code(SLOW_READER).stderr == "whole"


def test_waiting_ends_when_there_is_something():
    reading, writing = os.pipe()
    os.write(writing, b"x")
    streams._wait(reading, select.POLLIN)
    streams._wait(writing, select.POLLOUT)
    os.close(writing)
    os.read(reading, 1)
    streams._wait(reading, select.POLLIN)  # the end, too
    os.close(reading)


def test_an_input_that_cannot_be_read_is_named():
    with pytest.raises(IsADirectoryError) as caught:
        streams._Input(os.open("/", os.O_RDONLY)).read(1)
    assert caught.value.filename == "standard input"
