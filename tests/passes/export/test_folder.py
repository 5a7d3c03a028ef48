"""passes/export/folder.py: what killed exports leave, and what others are writing."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
from swept_writers import sweep_before_locks

from pyc.passes.export.folder import _sweep, new_folder
from pyc.passes.export.source import exportable
from pyc.runtime.errors import ArtifactError, RecipeError


def hidden(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def test_what_a_killed_export_left_is_removed(tmp_path):
    of_others = [".made.old", ".made.pyc-mine", ".made.pyc-bcdfghjk-1", ".other.pyc-bcdfghjk"]
    of_others += [".made.pyc-20261128", ".made.pyc-00000000", ".made.pyc-deadbeef", ".made.pyc-previous"]
    for name in (".made.pyc-bcdfghjk", *of_others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"part")
    with new_folder(tmp_path / "made") as folder:
        (folder / "file").write_text("text")
    assert hidden(tmp_path) == sorted(of_others)
    assert os.listdir(tmp_path / "made") == ["file"]


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """By another export to the same place."""

    def sweep():
        before = len(hidden(tmp_path))
        _sweep(tmp_path / "made")
        return before - len(hidden(tmp_path))

    swept = sweep_before_locks(monkeypatch, sweep, 3)
    with new_folder(tmp_path / "made") as folder:
        (folder / "file").write_text("text")
    assert swept == [1, 1, 1]
    assert os.listdir(tmp_path / "made") == ["file"] and hidden(tmp_path) == []


def test_a_folder_that_is_swept_before_it_is_opened_is_made_again(tmp_path, monkeypatch):
    make, made = Path.mkdir, []

    def make_and_sweep(path, *mode):
        make(path, *mode)
        made.append(path)
        if len(made) < 3:
            _sweep(tmp_path / "made")

    monkeypatch.setattr(Path, "mkdir", make_and_sweep)
    with new_folder(tmp_path / "made") as folder:
        assert folder == made[2]
    assert os.listdir(tmp_path) == ["made"]


def test_a_folder_that_is_always_swept_is_an_error(tmp_path, monkeypatch):
    sweep_before_locks(monkeypatch, lambda: _sweep(tmp_path / "made") or 0, 1000)
    says = r"made: cannot be written: other processes removed it 16 times before"
    with pytest.raises(ArtifactError, match=says), new_folder(tmp_path / "made"):
        pass
    assert os.listdir(tmp_path) == []


def test_what_another_export_writes_stays(tmp_path):
    with new_folder(tmp_path / "made") as first:
        (first / "file").write_text("first")
        with new_folder(tmp_path / "made") as second:
            (second / "file").write_text("second")
        assert first.exists()
        (tmp_path / "made" / "file").unlink()
    assert (tmp_path / "made" / "file").read_text() == "first"
    assert hidden(tmp_path) == []


def test_what_a_killed_export_of_a_recipe_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "pyc-export-0123456789abcdef"
    left.mkdir()
    with pytest.raises(RecipeError), exportable(tmp_path / "nothing.yaml"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == []


def test_standard_output_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match="-: a folder is written, not standard output"), new_folder("-"):
        pass
    assert not list(tmp_path.iterdir())


def test_files_reach_the_disk_before_the_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else name)
        real_fsync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        calls.append("rename")
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    with new_folder(tmp_path / "made") as folder:
        (folder / "inner").mkdir()
        (folder / "one").write_bytes(b"1")
        (folder / "inner" / "two").write_bytes(b"2")
    assert sorted(calls[:-2]) == ["folder", "folder", "one", "two"]
    assert calls[-2:] == ["rename", "folder"]
    assert (tmp_path / "made" / "inner" / "two").read_bytes() == b"2"
