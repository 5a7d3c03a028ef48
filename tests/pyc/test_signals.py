"""pyc/signals.py and pyc/process.py: a signal ends `pyc` at any moment, however often it comes, and leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# The process `pyc`, with compilers that take ten minutes: a program that sleeps in zig's place, and in TVM's a thread
# that cannot be interrupted. What waits for either does not end in time. argv: how, signals; then pyc's own.
SLOW_BUILD = """
import os, signal, sys, time
from pathlib import Path

how, folder = sys.argv[1], Path(sys.argv[2])
del sys.argv[1:3]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background inherits that it is ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.backends.registry import BACKENDS
from pyc.runtime.artifact.format import Tool

zig = folder / "zig"
zig.write_text(f"#!/bin/sh\\nsleep 600 &\\necho $$ $! >> {folder}/pids\\nsleep 600\\n")
zig.chmod(0o700)
Toolchain._zig = str(zig)

class Backend(CpuBackend):
    def tools(self):
        return (Tool("slow", "1"),)

    def compile(self, module, buckets, isas):
        from pyc.backends.cpu.isa import find_isa
        if how == "tvm":
            with open(folder / "pids", "a") as file:
                file.write("0 0\\n")
            while True:
                try:
                    time.sleep(600)
                except BaseException:
                    pass
        self._toolchain.compile_object("int x;", find_isa(isas[0]), {})
        yield None

BACKENDS["cpu"] = Backend
from pyc.process import entry
entry()
"""

# The process `pyc`, which signals itself at the n-th function call from the start of its own code on, and again.
AT_A_CALL = """
import os, signal, sys

moment, number = int(sys.argv[1]), int(sys.argv[2])
del sys.argv[1:3]
signal.signal(signal.SIGINT, signal.default_int_handler)
from pyc.process import entry
calls = 0

def count(frame, event, argument):
    global calls
    if event == "call":
        calls += 1
        if calls in (moment, moment + 1, moment + 7, moment + 60, moment + 400):
            os.kill(os.getpid(), number)

sys.setprofile(count)
entry()
"""
# A program of somebody's own, which is interrupted at the n-th function call of its first build, and goes on.
FIRST_BUILD = """
import os, signal, sys
import pyc
from pyc import IngestError

moment, calls = int(sys.argv[1]), 0

def count(frame, event, argument):
    global calls
    if event == "call":
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.setprofile(count)
try:
    pyc.build({"model": "nowhere/at/all"})
except (KeyboardInterrupt, IngestError) as error:
    sys.setprofile(None)
    print(type(error).__name__)
try:
    pyc.build({"model": "nowhere/at/all"})
except IngestError:
    print("again")
"""

# A program of somebody's own, whose build tells when LLVM begins.
OWN_PROGRAM = """
import sys
import pyc
from pyc.backends.cpu import backend

compile_object = backend._host_object

def told(kernels, isa):
    print("compiling", flush=True)
    return compile_object(kernels, isa)

backend._host_object = told
try:
    pyc.build(sys.argv[1], output=sys.argv[2], use_cache=False)
finally:
    print("ended", flush=True)
"""
HANDLER_CALLS = 80
"""Calls of `entry` within which it has installed its handlers."""


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    made = {name: tmp_path / name for name in ("tmp", "cache", "out")}
    for path in made.values():
        path.mkdir()
    return made


def environment_of(folders: dict[str, Path]) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folders["tmp"]), "PYC_CACHE_DIR": str(folders["cache"])}


def left_in(folders: dict[str, Path]) -> list[Path]:
    staged = list(folders["cache"].glob("staged-*"))
    return [*folders["tmp"].iterdir(), *folders["out"].iterdir(), *staged]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("how", ["zig", "tvm"])
@pytest.mark.parametrize(
    ("number", "times", "gap_s", "code"),
    [
        (signal.SIGINT, 1, 0, 130),
        (signal.SIGINT, 3, 0.15, 130),
        (signal.SIGINT, 10, 0.05, 130),
        (signal.SIGTERM, 2, 0.1, 143),
        (signal.SIGHUP, 2, 0.1, 129),
    ],
)
def test_a_build_ends_without_its_compilers(tiny_checkpoint, tmp_path, folders, how, number, times, gap_s, code):
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {tiny_checkpoint('llama')}\n")
    command = [sys.executable, "-c", SLOW_BUILD, how, str(tmp_path), "build", str(recipe)]
    process = subprocess.Popen(
        [*command, "-o", str(folders["out"] / "m.pyca")],
        env=environment_of(folders),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids = tmp_path / "pids"
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(gap_s)
    out, err = process.communicate(timeout=120)
    words = {130: "interrupted", 143: "terminated", 129: "hung up"}
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err and "Exception" not in err
    assert err.endswith(f"pyc: {words[code]}\n")
    assert left_in(folders) == []
    deadline_s = time.monotonic() + 60
    while any(is_alive(int(pid)) for pid in pids.read_text().split() if int(pid)):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [1, 9_000, 22_300, 22_600, 22_900, 23_200, 30_000, 60_000, 91_000, 10_000_000])
def test_an_interrupted_first_build_spoils_no_later_one(folders, moment):
    """numpy, whose import it strikes, loads once in a process."""
    command = [sys.executable, "-c", FIRST_BUILD, str(moment)]
    done = subprocess.run(command, env=environment_of(folders), capture_output=True, text=True, check=False)
    expected = "KeyboardInterrupt" if moment < 1_000_000 else "IngestError"
    assert (done.returncode, done.stdout) == (0, f"{expected}\nagain\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("gaps_s", [(), (0.01,), (0.05, 0.05)])
def test_a_build_in_a_program_ends_with_its_compilers(tiny_checkpoint, folders, gaps_s):
    """By the exception of the first Ctrl-C, whatever the others come to: no thread is left in LLVM as Python ends."""
    command = [sys.executable, "-c", OWN_PROGRAM, str(tiny_checkpoint("llama")), str(folders["out"] / "m.pyca")]
    process = subprocess.Popen(
        command, env=environment_of(folders), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout.readline() == "compiling\n"
    for gap_s in (0.0, *gaps_s):
        time.sleep(gap_s)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1]) == (-signal.SIGINT, "ended"), err
    assert err.splitlines()[-1] == "KeyboardInterrupt" and "terminate" not in err
    assert left_in(folders) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_at_any_moment(tiny_checkpoint, tmp_path, folders, number):
    recipe = tmp_path / "model.yaml"
    recipe.write_text(f"model: {tiny_checkpoint('llama')}\n")
    running = []
    for moment in (HANDLER_CALLS, 200, 600, 2_000, 6_000, 20_000, 60_000, 120_000):
        command = [sys.executable, "-c", AT_A_CALL, str(moment), str(int(number)), "plan", str(recipe)]
        process = subprocess.run(
            command, env=environment_of(folders), capture_output=True, text=True, check=False, timeout=120
        )
        running.append((moment, process.returncode, "Traceback" in process.stderr, process.stderr[-200:]))
        if process.returncode == 0:  # it had done before
            break
    assert len(running) > 5
    for moment, code, has_traceback, err in running:
        assert not has_traceback and "Exception" not in err, (moment, err)
        assert code == 128 + number or (code == 0 and moment >= 60_000), (moment, code, err)
    assert left_in(folders) == []


FIRST_LOAD = FIRST_BUILD.replace('pyc.build({"model": "nowhere/at/all"})', 'pyc.load("nowhere.pyca")').replace(
    "IngestError", "MissingArtifactError"
)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [100, 2_900, 3_300, 3_700, 4_500, 40_000])
def test_an_interrupted_first_load_spoils_no_later_one(folders, moment):
    command = [sys.executable, "-c", FIRST_LOAD, str(moment)]
    done = subprocess.run(command, env=environment_of(folders), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "KeyboardInterrupt\nagain\n"), done.stderr
