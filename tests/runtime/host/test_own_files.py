"""Files under names that others can tell: whose they are, and who may write to them."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyc.runtime.host.own_files import why_not_own


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def owned_by(user: int, mode: int) -> os.stat_result:
    """What a file of a user is."""
    return os.stat_result((stat.S_IFREG | mode, 1, 1, 1, user, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (owned_by(os.geteuid() + 1, 0o600), f"belongs to user {os.geteuid() + 1}"),
        (owned_by(os.geteuid() + 1, 0o666), f"belongs to user {os.geteuid() + 1}"),
        (owned_by(os.geteuid(), 0o620), "can be written by others (mode 620)"),
        (owned_by(os.geteuid(), 0o644), None),
    ],
)
def test_whose_a_file_is(found: os.stat_result, reason: str | None, tmp_path: Path) -> None:
    assert why_not_own(found, tmp_path / "file") == reason
    assert not list(tmp_path.iterdir())


def test_what_the_umask_lets_others_do_they_may(tmp_path: Path) -> None:
    os.umask(0o002)
    assert why_not_own(owned_by(os.geteuid(), 0o664), tmp_path / "file") is None
    assert why_not_own(owned_by(os.geteuid(), 0o666), tmp_path / "file") is not None


def test_what_is_no_file_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    assert why_not_own((tmp_path / "link").lstat(), tmp_path / "link") == "is not a regular file"
    os.link(tmp_path / "file", tmp_path / "other")
    assert str(why_not_own((tmp_path / "file").stat(), tmp_path / "file")).startswith("has 2 names")


def test_a_file_system_that_gives_each_file_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a share does, or one that takes root for nobody: what this user makes there is no more their own."""
    (tmp_path / "file").touch(mode=0o600)
    found, own = (tmp_path / "file").stat(), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert why_not_own(found, tmp_path / "file") is None
    (tmp_path / "file").chmod(0o666)
    assert why_not_own((tmp_path / "file").stat(), tmp_path / "file") == f"belongs to user {own}"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
