"""runtime/host/home.py: where the folder is, and files that are there whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import home_directory, make_folder, nearest_existing, open_regular, user_home, write_whole
from pyc.runtime.host.temporary_files import temporary_path


def test_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("PYC_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert home_directory() == tmp_path / "user" / ".config" / "pyc"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert home_directory() == tmp_path / "xdg" / "pyc"
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "pyc"))
    assert home_directory() == tmp_path / "pyc"


def test_what_is_nearest_and_why_nothing_can_be_below_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "to nothing").symlink_to("nothing")
    (tmp_path / "to itself").symlink_to("to itself")
    assert nearest_existing(tmp_path / "a" / "b") == (tmp_path, "")
    for name in ("file", "to nothing", "to itself"):
        assert nearest_existing(tmp_path / name / "a") == (tmp_path / name, "is not a folder")


def test_a_link_into_a_folder_that_one_may_not_enter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "locked" / "keys")
    real = os.stat

    def stat(path: str | Path, **options: bool) -> os.stat_result:
        if Path(path) == link:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr("os.stat", stat)
    monkeypatch.setenv("PYC_HOME", str(link))
    with pytest.raises(ArtifactError) as caught:
        home_directory()
    says = f"{link}: {link} cannot be entered, so keys cannot be kept below it; set PYC_HOME to a folder"
    assert str(caught.value) == says


def test_an_existing_file_wins_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    assert write_whole(path, "one", 0o600, replace=False)
    assert not write_whole(path, "two", 0o600, replace=False)
    assert path.read_text() == "one"
    assert write_whole(path, "three", 0o600, replace=True)
    assert path.read_text() == "three"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", "text", 0o600, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_file_has_the_same_bytes_in_any_locale(tmp_path: Path) -> None:
    code = "from pyc.runtime.host.home import write_whole; from pathlib import Path; import sys\n"
    code += "write_whole(Path(sys.argv[1]), 'Zo\\u00eb \\u65e5', 0o644, replace=True)"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "key")], check=True, env=environment)
    assert (tmp_path / "key").read_bytes() == "Zoë 日".encode()


def test_what_a_killed_writer_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    import fcntl

    target = tmp_path / "key"
    dead, alive = temporary_path(target), temporary_path(target)
    other = temporary_path(tmp_path / "other")
    for path in (dead, alive, other):
        path.touch()
    with open(alive) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert write_whole(target, "text", 0o600, replace=False)
        assert sorted(tmp_path.iterdir()) == sorted([alive, other, target])
    assert write_whole(target, "more", 0o600, replace=True)
    assert sorted(tmp_path.iterdir()) == sorted([other, target])


@pytest.mark.parametrize("name", ["fsync", "link"])
def test_a_writer_that_fails_leaves_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "key", "text", 0o600, replace=False)
    assert list(tmp_path.iterdir()) == []


def test_where_no_folder_can_be_made() -> None:
    """/proc is there, and answers that it is not."""
    with pytest.raises(OSError, match="No such file"):
        make_folder(Path("/proc/no/such/home"), 0o700)


def test_a_stack_of_calls_that_is_full_is_no_missing_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """RecursionError is a RuntimeError, as what says that there is no home."""

    def full() -> Path:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(Path, "home", full)
    with pytest.raises(RecursionError):
        user_home()


def test_a_file_that_has_nothing_to_read_now_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As /proc/kmsg, which the tests of a user cannot open: here an empty pipe in the place of a file."""
    (tmp_path / "file").write_text("text")
    with open_regular(tmp_path / "file") as file:
        assert (file.read(2), file.read()) == (b"te", b"xt")
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open_regular(tmp_path / "file") as file:
        os.dup2(reading, file.fileno())
        for read in (lambda: file.read(4), file.read):
            with pytest.raises(BlockingIOError):
                read()
        os.write(writing, b"more")
        assert file.read(4) == b"more"
    os.close(reading)
    os.close(writing)
