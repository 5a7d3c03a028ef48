"""compiler/files/work_folder.py: folders go when done with, and a later build removes those of killed ones."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyc import cli
from pyc.compiler.files.work_folder import leftovers, sweep, work_folder
from pyc.runtime.errors import LowerError
from pyc.runtime.host import unfinished

KILLED = """
import os, signal
from pyc.compiler.files.work_folder import work_folder
with work_folder("cc") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_with_what_is_in_it(temporary):
    with work_folder("cc") as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "inside").mkdir()
    assert list(temporary.iterdir()) == []
    with pytest.raises(ZeroDivisionError), work_folder("ld") as folder:
        1 / 0  # noqa: B018
    assert list(temporary.iterdir()) == []


def test_what_a_killed_build_left_is_swept_and_nothing_else(temporary):
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, check=False, capture_output=True, text=True
    )
    left = Path(killed.stdout.strip())
    assert killed.returncode == -signal.SIGKILL
    assert (left / "file").exists()
    others = [temporary / "pyc-cc-notes", temporary / "pyc-cc-0123456789abcdef0"]
    for other in others:
        other.mkdir()
    (temporary / "pyc-cc-0123456789abcdef").touch()
    (temporary / "pyc-cc-0123456789abcdee").symlink_to(others[0])
    with work_folder("cc") as used:
        assert leftovers() == [left]
        assert sweep() == 1
        assert used.exists()
    assert not left.exists()
    assert all(other.exists() for other in others)
    assert sweep() == 0


def test_the_end_of_the_process_removes_it(temporary):
    try:
        with work_folder("cc") as folder:
            (folder / "file").touch()
            unfinished.drop_all()
            assert not folder.exists()
            with pytest.raises(KeyboardInterrupt), work_folder("ld"):
                pass
    finally:
        unfinished.resume()
    assert list(temporary.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named_with_the_setting(temporary, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "missing"))
    message = r"missing/pyc-cc-.*: No such file or directory; set TMPDIR"
    with pytest.raises(LowerError, match=message), work_folder("cc"):
        pass
    with pytest.raises(OSError, match="No such file or directory; set TMPDIR") as caught, work_folder("calibration"):
        pass
    assert "missing/pyc-calibration-" in caught.value.filename
    assert cli.describe(caught.value)[1] == 74


FULL = [
    (errno.ENOSPC, "No space left on device; free some space or set TMPDIR to another folder"),
    (errno.EFBIG, r"File too large; raise the limit \(ulimit -f\)"),
]


@pytest.mark.parametrize(("number", "message"), FULL)
def test_a_full_disk_is_named_with_the_setting(number, message):
    """It is a compiler's fault only where a compiler works."""
    with pytest.raises(LowerError, match=rf"pyc-cc-.*: {message}"), work_folder("cc"):
        raise OSError(number, os.strerror(number))
    with pytest.raises(OSError, match=message) as caught, work_folder("calibration"):
        raise OSError(number, os.strerror(number))
    line, code = cli.describe(caught.value)
    assert code == 74
    assert re.fullmatch(rf"pyc: error: .*pyc-calibration-.*: {message}", line)


@pytest.mark.parametrize("purpose", ["cc", "calibration"])
def test_too_few_descriptors_are_no_matter_of_the_folder(purpose, monkeypatch):
    def refused(path: Path, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises((LowerError, OSError)) as caught, work_folder(purpose):
        pass
    line, code = cli.describe(caught.value)
    assert code == (7 if purpose == "cc" else 74)
    assert line.endswith(": Too many open files; raise the limit (ulimit -n)")


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(temporary, monkeypatch):
    """Another build sweeps between the making and the opening, twice."""
    swept = []
    mkdir = Path.mkdir

    def make_and_sweep(path: Path, *arguments: object, **options: object) -> None:
        mkdir(path, *arguments, **options)
        if len(swept) < 2:
            swept.append(path)
            assert sweep() == 1

    monkeypatch.setattr(Path, "mkdir", make_and_sweep)
    with work_folder("cc") as folder:
        assert folder.is_dir()
        assert folder not in swept
    assert len(swept) == 2
