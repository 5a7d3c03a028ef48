"""A file that is cut while a command runs it: the exit code of artifacts, and no signal."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CUT_UNDER_A_COMMAND = """
import itertools, os, sys
from pyc.cli import main
from pyc.runtime.executors.cpu.executor import CpuExecutor

check, calls, path = CpuExecutor.check_file, itertools.count(), sys.argv[2]

def check_and_cut(self):
    check(self)
    if next(calls):  # the first is that of loading
        os.truncate(path, 4096)

CpuExecutor.check_file = check_and_cut
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("fixture", "arguments"), [
    ("decoder_artifact", ["run", "-p", "the cat", "--threads", "2"]),
    ("decoder_artifact", ["run", "-p", "the cat", "--json"]),
    ("encoder_artifact", ["embed", "the cat"]),
])
def test_commands_leave_with_the_exit_code_of_artifacts(
    fixture: str, arguments: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = shutil.copy(request.getfixturevalue(fixture), tmp_path / "m.pyca")
    command = [sys.executable, "-c", CUT_UNDER_A_COMMAND, arguments[0], str(path), *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 8, done.stderr
    assert done.stderr.startswith(f"pyc: error: {path}: cut, or not readable any more while it was in use: load it")
