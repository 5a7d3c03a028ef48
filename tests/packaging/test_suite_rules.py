"""tests/conftest.py: the watch over the suite notices what it is there for."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

UNPICKLING = """
import pickle, sys, types

house = types.ModuleType("pyc.probe")
exec("import pickle\\ndef load(data): return pickle.loads(data)", vars(house))

def test_it():
    assert house.load(pickle.dumps(types.SimpleNamespace(a=1))).a == 1
"""

IMPORTING = """
import sys, types

def test_it():
    sys.modules["compiler"] = types.ModuleType("compiler")
"""


def run_suite(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("test", "complaint"), [(UNPICKLING, "pyc never unpickles"), (IMPORTING, "second copy of every class")]
)
def test_a_suite_that_breaks_a_rule_fails(test, complaint, tmp_path):
    result = run_suite(tmp_path, test)
    assert result.returncode == 1
    assert complaint in result.stdout


def test_unpickling_outside_pyc_is_nobodys_business(tmp_path):
    result = run_suite(tmp_path, UNPICKLING.replace("pyc.probe", "other.probe"))
    assert (result.returncode, result.stderr) == (0, "")


def test_a_connection_that_leaves_the_machine_is_refused():
    with socket.socket() as leaving, pytest.raises(PermissionError, match="uses no network"):
        leaving.connect(("192.0.2.1", 80))


def test_a_connection_within_the_machine_is_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as connection:
            assert connection.getpeername() == address


