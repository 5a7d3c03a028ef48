"""compiler/processes.py: what a compiler started ends with it, however the build ends."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyc.compiler.processes import Processes
from pyc.runtime.host import unfinished

SLOW = ("/bin/sh", "-c", "sleep 600 & echo $! > child; echo $$ > self; sleep 600")
KILLED = """
import os, sys
from pathlib import Path
from pyc.compiler.processes import Processes
Processes().run(sys.argv[2:], Path(sys.argv[1]), os.environ)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def pids_of(folder: Path) -> list[int]:
    files = (folder / "child", folder / "self")
    wait_for(lambda: all(path.exists() and path.read_text().endswith("\n") for path in files))
    return [int(path.read_text()) for path in files]


def test_a_program_that_ends(tmp_path):
    code = "import os, sys; print(os.getcwd()); sys.stderr.buffer.write(b'\\xff'); sys.exit(3)"
    command = [sys.executable, "-c", code]
    result = Processes().run(command, tmp_path, os.environ)
    assert (result.returncode, result.stdout, result.stderr) == (3, f"{tmp_path}\n", "\ufffd")


def test_a_program_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Processes().run(["/nowhere/zig"], tmp_path, os.environ)


@pytest.mark.parametrize("has_shell", [True, False])
def test_stopping_ends_all_that_it_started(tmp_path, monkeypatch, has_shell):
    if not has_shell:
        monkeypatch.setattr("pyc.compiler.processes.GUARD", ("/nowhere/sh",))
    processes = Processes()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(processes.run, SLOW, tmp_path, os.environ)
        pids = pids_of(tmp_path)
        assert all(os.getpgid(pid) != os.getpgid(0) for pid in pids)  # Ctrl-C in a terminal does not reach them
        processes.stop()
        with pytest.raises(KeyboardInterrupt):
            running.result()
    wait_for(lambda: not any(map(is_alive, pids)))
    with pytest.raises(KeyboardInterrupt):
        processes.run(SLOW, tmp_path, os.environ)


def test_the_end_of_the_process_ends_them(tmp_path):
    processes = Processes()
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(processes.run, SLOW, tmp_path, os.environ)
            pids = pids_of(tmp_path)
            unfinished.kill_programs()
            running.result()
        with pytest.raises(KeyboardInterrupt):
            processes.run(SLOW, tmp_path, os.environ)
    finally:
        unfinished.resume()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_they_end_when_pyc_is_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), *SLOW])
    pids = pids_of(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(map(is_alive, pids)))
