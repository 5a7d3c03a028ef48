"""The processes of a bundle's scripts: installs at once, signals, and what run.sh becomes."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from bundles import environment, start


def test_installs_at_once_leave_one_environment(installable, tmp_path):
    venv = tmp_path / "venv"
    running = [start(installable, venv) for _ in range(4)]
    assert [process.communicate()[1] for process in running] == [""] * 4
    assert [process.returncode for process in running] == [0] * 4
    assert (venv / "bin" / "python").exists() and (venv / ".pyc-bundle").exists()
    first = venv.stat().st_ino
    assert start(installable, venv).wait() == 0  # asked for again: made again
    assert venv.stat().st_ino != first
    assert not list(tmp_path.glob("venv.*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_install_that_is_ended_leaves_no_half_environment(number, installable, tmp_path):
    reached = tmp_path / "reached"
    process = start(installable, tmp_path / "venv", GATE=str(tmp_path / "gate"), VARIABLES=str(reached))
    while not reached.exists():
        time.sleep(0.02)
    os.killpg(process.pid, number)
    (tmp_path / "gate").touch()  # a pip that is left, as SIGKILL does
    assert process.wait() != 0
    process.stderr.close()
    assert not (tmp_path / "venv").exists()
    assert number == signal.SIGKILL or not list(tmp_path.glob("venv.*"))


@pytest.mark.parametrize("script", ["install.sh", "run.sh"])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_to_a_script_alone_ends_all_that_it_started(number, script, installable, tmp_path):
    """As `kill` and supervisors send it. The pip here waits for a file that never comes."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever started this has it ignored, as nohup does, and so has the script")
    gate, reached, temporary = tmp_path / "gate", tmp_path / "reached", tmp_path / "temporary"
    temporary.mkdir()
    script = installable.with_name(script)
    process = start(script, tmp_path / "venv", GATE=str(gate), VARIABLES=str(reached), TMPDIR=str(temporary))
    while not reached.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 128 + number)
    assert not list(tmp_path.glob("venv*")) and not list(temporary.iterdir())
    assert os.getpid() in dict(environments())
    deadline = time.monotonic() + 60
    while left := [pid for pid, variables in environments() if f"GATE={gate}".encode() in variables]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_a_signal_while_the_former_environment_goes_leaves_none_of_it(installable, tmp_path):
    """It takes a while: the signal comes when it has lost its name, and waits until it is gone."""
    venv = tmp_path / "venv"
    assert start(installable, venv).wait() == 0
    for number in range(3000):
        (venv / str(number)).mkdir()
    process = start(installable, venv)
    while not list(tmp_path.glob("venv.pyc-old.*")) and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[1] == ""
    assert process.returncode in (0, 143) and not list(tmp_path.glob("venv.*"))
    assert (venv / ".pyc-bundle").exists() and not (venv / "0").exists()


def environments():
    """The processes that can be seen, and their variables."""
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            yield int(place.parent.name), place.read_bytes().split(b"\0")


def test_run_has_the_place_of_the_install_that_it_started(installable, tmp_path):
    """One process: whoever supervises run.sh supervises pyc. Its umask is the caller's, and it ignores no signal."""
    shown = tmp_path / "shown"
    (tmp_path / "python").write_text(
        (tmp_path / "python").read_text().replace("#!/bin/sh\n", SHOW.format(shown=shown), 1)
    )
    command = ["/bin/sh", "-c", f"umask 027; exec {installable.with_name('run.sh')}"]
    variables = {**environment(tmp_path / "venv"), "PYTHON": str(tmp_path / "python")}
    process = subprocess.Popen(command, env=variables)
    assert process.wait() == 0
    pid, mask, ignored = shown.read_text().split()
    assert (int(pid), mask) == (process.pid, "0027")
    assert not int(ignored, 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGTERM - 1)


SHOW = """#!/bin/sh
if [ "$1 $2 $3" = "-P -m pyc" ]; then
    echo $$ $(umask) $(sed -n 's/^SigIgn:\t//p' /proc/self/status) >"{shown}"
    exit 0
fi
"""
