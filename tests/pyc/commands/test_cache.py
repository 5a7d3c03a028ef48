"""`pyc cache`: what is there, and less of it."""

import json
import os
import shutil

import pytest

from pyc.commands.cache import Size
from pyc.compiler.files.cache import Cache
from pyc.compiler.health import check_cache
from pyc.runtime.host import cache_folder
from pyc.runtime.host.cache_folder import cache_directory, remove

DATA = bytes(1000)
KEYS = [f"{index:02x}" * 32 for index in range(4)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    for age, key in enumerate(KEYS):
        Cache(cache_directory()).put(key, DATA)
        os.utime(tmp_path / "cache" / "entries" / key[:2] / key, (1000 - age, 1000 - age))
    (tmp_path / "cache" / "staged-0123456789abcdef").write_bytes(DATA)
    for name, size_bytes in (("zig-2", 70), ("zig", 7)):  # and what earlier versions left
        (tmp_path / "cache" / name / "o").mkdir(parents=True)
        (tmp_path / "cache" / name / "o" / "stub").write_bytes(bytes(size_bytes))
    (tmp_path / "pyc-cc-0123456789abcdef").mkdir()
    return tmp_path / "cache"


def shown(pyc):
    code, out, err = pyc("cache", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_what_is_there(folder, pyc, monkeypatch):
    monkeypatch.setenv("PYC_CACHE_BYTES", "5000")
    assert shown(pyc) == {
        "folder": str(folder),
        "entries": 4,
        "entry_bytes": 4 * 1032,
        "chunks": 0,
        "chunk_bytes": 0,
        "limit_bytes": 5000,
        "zig_bytes": 77,
        "leftovers": 2,
    }
    code, out, err = pyc("cache")
    assert (code, err) == (0, "")
    assert "4.13 kB of at most 5 kB" in out


def test_pruning_keeps_what_was_used_last(folder, pyc):
    code, out, _ = pyc("cache", "prune", "--max-size", "2.5kB", "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["entries"], document["removed_bytes"], document["leftovers"]) == (2, 2 * 1032, 2)
    assert [Cache(folder).get(key) is not None for key in KEYS] == [True, True, False, False]
    assert shown(pyc)["leftovers"] == 0


def test_what_others_add_meanwhile_is_no_failure(folder, pyc, monkeypatch):
    def removed_beside_a_build(path):
        if path.name == KEYS[-1]:
            Cache(folder).put("ab" * 32, bytes(5000))
        return remove(path)

    monkeypatch.setattr(cache_folder, "remove", removed_beside_a_build)
    code, _, err = pyc("cache", "prune", "--max-size", "2.5kB")
    assert (code, err) == (0, "")
    assert Cache(folder).get("ab" * 32) is not None


def test_pruning_all(folder, pyc):
    code, out, err = pyc("cache", "prune", "--all")
    assert (code, err) == (0, "")
    assert out.startswith("removed 4 entries and 2 leftovers, ")
    assert (shown(pyc)["entries"], shown(pyc)["zig_bytes"]) == (0, 0)
    assert not (folder / "zig").exists() and not (folder / "zig-2").exists()


def test_files_of_the_user_stay(folder, pyc):
    """$PYC_CACHE_DIR may be a folder with other things in it, under names like those of the cache."""
    for name in ("zig", "zig-2"):
        shutil.rmtree(folder / name)
    names = (
        "notes", "staged-changes.diff", "zig-damaged-notes", "entries/notes", "entries/ab/photo.jpg", "zig/src/m.zig",
        f"entries/cd/{KEYS[0]}", f"entries/{KEYS[1][:2]}/{KEYS[1]}.bak", "entries/ab/folder/file", "zig/o/x",
        "zig-2/src/x",
    )  # fmt: skip
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(DATA)
    assert shown(pyc)["entries"] == 4
    assert shown(pyc)["zig_bytes"] == 0
    code, out, err = pyc("cache", "prune", "--all")
    assert (code, err) == (0, "")
    assert out.startswith("removed 4 entries and 2 leftovers, ")
    Cache(folder).trim()
    assert all((folder / name).read_bytes() == DATA for name in names)


def test_a_cache_that_is_not_there(pyc, tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "none"))
    assert shown(pyc)["entries"] == 0
    assert pyc("cache", "prune", "--all")[0] == 0
    assert not (tmp_path / "none").exists()


def test_a_cache_that_cannot_be_entered(pyc, tmp_path, monkeypatch):
    """A folder of another user, or a name that is too long: builds go on without a cache, and commands name it."""
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / ("long" * 80)))
    cache = Cache(cache_directory())
    cache.put(KEYS[0], DATA)
    assert cache.get(KEYS[0]) is None
    cache.trim()
    for command in (("cache",), ("cache", "prune")):
        code, _, err = pyc(*command)
        assert code == 74 and "File name too long; set PYC_CACHE_DIR to a folder of yours" in err, err
    (finding,) = check_cache()
    assert finding.verdict == "warn" and "File name too long: builds have no cache" in finding.found


def test_sizes():
    sizes = {"0": 0, "123": 123, "2GB": 2 * 10**9, "1.5 GiB": 3 << 29, "10k": 10_000, "3mb": 3 * 10**6}
    for text, size in sizes.items():
        assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "9" * 5000, "1 parsec", "١"])
def test_what_is_no_size(pyc, text):
    code, out, err = pyc("cache", "prune", "--max-size", text)
    assert (code, out) == (2, "")
    assert "is not a size such as" in err
