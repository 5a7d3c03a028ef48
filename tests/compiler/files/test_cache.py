"""compiler/files/cache.py: entries appear whole or not at all, damage is noticed, the oldest go first."""

import errno
import os
import resource
import secrets
import stat

import pytest
from swept_writers import sweep_before_locks

from pyc.compiler.files import cache as cache_file
from pyc.compiler.files.cache import Cache
from pyc.compiler.health import check_cache
from pyc.runtime.host.cache_folder import cache_directory, limit_bytes, measure, sweep_staged
from pyc.runtime.host.temporary_files import MOST_TRIES

KEY, OTHER = "ab" * 32, "cd" * 32
DATA = bytes(range(256)) * 40
PIECES = (DATA[:5], b"", memoryview(DATA)[5:5000], DATA[5000:])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def entry_of(folder):
    (path,) = files_of(folder)
    return path


def test_a_stream_is_kept_and_found_again(folder):
    first = Cache(folder)
    assert b"".join(first.stream(KEY, iter(PIECES))) == DATA
    assert (first.hits, first.misses) == (0, 1)
    second = Cache(folder)
    untouched = iter([b"must not be read"])
    assert b"".join(second.stream(KEY, untouched)) == DATA
    assert list(untouched) == [b"must not be read"]
    assert (second.hits, second.misses) == (1, 0)
    assert second.get(KEY) == DATA


@pytest.mark.parametrize("data", [b"", b"x", DATA])
def test_put_and_get(folder, data):
    cache = Cache(folder)
    assert cache.get(KEY) is None
    cache.put(KEY, data)
    assert cache.get(KEY) == data
    assert cache.get(OTHER) is None
    assert (cache.hits, cache.misses) == (1, 2)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_who_may_read_an_entry_is_for_the_umask_to_say(folder, umask, mode):
    former = os.umask(umask)
    try:
        Cache(folder).put(KEY, DATA)
    finally:
        os.umask(former)
    assert stat.S_IMODE(entry_of(folder).stat().st_mode) == mode


def test_entries_that_may_not_be_read_are_counted(folder, monkeypatch):
    monkeypatch.setenv("PYC_CACHE_DIR", str(folder))
    for key in (KEY, OTHER):
        Cache(folder).put(key, DATA)
    assert measure(folder).unreadable == 0
    monkeypatch.setattr(os, "access", lambda path, mode: OTHER not in str(path))
    assert measure(folder).unreadable == 1
    (found,) = (each for each in check_cache() if each.name == "cache entries")
    assert found.verdict == "warn" and found.found.startswith("1 of 2 entries are another user's")


def test_an_entry_that_changes_after_it_was_looked_at_is_not_used(folder, monkeypatch, caplog):
    Cache(folder).put(KEY, DATA)
    looked_at = cache_file._is_intact

    def and_changed(file, key):
        found = looked_at(file, key)
        with entry_of(folder).open("r+b") as entry:
            entry.write(b"Z")
        return found

    monkeypatch.setattr(cache_file, "_is_intact", and_changed)
    assert Cache(folder).get(KEY) is None
    assert "is damaged; computing it again" in caplog.text and not files_of(folder)


def test_a_stream_that_is_not_read_to_its_end_leaves_nothing(folder):
    stream = Cache(folder).stream(KEY, iter(PIECES))
    next(stream)
    stream.close()
    assert files_of(folder) == []


def test_pieces_that_fail_leave_nothing(folder):
    def failing():
        yield DATA
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(Cache(folder).stream(KEY, failing()))
    assert files_of(folder) == []


def damages():
    yield "empty", lambda data: b""
    yield "shorter", lambda data: data[:-1]
    yield "half", lambda data: data[: len(data) // 2]
    yield "longer", lambda data: data + b"\0"
    yield "a bit", lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:]
    yield "zeros", lambda data: bytes(len(data))
    yield "its digest", lambda data: data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("damage", [pytest.param(change, id=name) for name, change in damages()])
def test_a_damaged_entry_is_computed_again(folder, damage, caplog):
    Cache(folder).put(KEY, DATA)
    path = entry_of(folder)
    path.write_bytes(damage(path.read_bytes()))
    cache = Cache(folder)
    assert cache.get(KEY) is None
    assert "is damaged" in caplog.text
    assert b"".join(cache.stream(KEY, iter(PIECES))) == DATA
    assert (cache.hits, cache.misses) == (0, 2)
    assert cache.get(KEY) == DATA


def test_an_entry_that_was_made_longer_by_terabytes_is_not_hashed(folder, caplog):
    Cache(folder).put(KEY, DATA)
    path = entry_of(folder)
    try:
        os.truncate(path, 1 << 42)
    except OSError:
        pytest.skip("the file system has no files of that size")
    assert Cache(folder).get(KEY) is None
    assert "is damaged" in caplog.text
    assert not path.exists()


def test_an_entry_under_another_key_is_damaged(folder):
    Cache(folder).put(KEY, DATA)
    target = folder / "entries" / OTHER[:2] / OTHER
    target.parent.mkdir()
    entry_of(folder).rename(target)
    assert Cache(folder).get(OTHER) is None


def test_without_a_folder_everything_is_computed(tmp_path):
    cache = Cache(None)
    assert b"".join(cache.stream(KEY, iter(PIECES))) == DATA
    cache.put(KEY, DATA)
    assert cache.get(KEY) is None
    cache.trim()
    assert cache.misses == 2


def test_a_folder_that_cannot_be_made_only_costs_the_entry(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    assert b"".join(cache.stream(KEY, iter(PIECES))) == DATA
    assert "going on without" in caplog.text
    assert cache.get(KEY) is None


def test_no_space_only_costs_the_entry(folder, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        found = b"".join(Cache(folder).stream(KEY, iter(PIECES)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == DATA
    assert "entry not kept" in caplog.text
    assert files_of(folder) == []


def test_two_writers_of_one_entry(folder):
    streams = [Cache(folder).stream(KEY, iter(PIECES)) for _ in range(2)]
    halves = [[next(stream)] for stream in streams]
    for half, stream in zip(halves, streams, strict=True):
        assert b"".join([*half, *stream]) == DATA
    assert len(files_of(folder)) == 1
    assert Cache(folder).get(KEY) == DATA


def test_the_least_recently_used_go(folder, monkeypatch):
    cache = Cache(folder)
    keys = [f"{index:02x}" * 32 for index in range(4)]
    for age, key in enumerate(keys):
        cache.put(key, DATA)
        os.utime(folder / "entries" / key[:2] / key, (1000 - age, 1000 - age))
    assert cache.get(keys[3]) == DATA  # the oldest, but just used
    monkeypatch.setenv("PYC_CACHE_BYTES", str(2 * (len(DATA) + 32)))
    cache.trim()
    assert [cache.get(key) is not None for key in keys] == [True, False, False, True]


def test_the_limit_may_be_nonsense(folder, monkeypatch, caplog):
    cache = Cache(folder)
    cache.put(KEY, DATA)
    monkeypatch.setenv("PYC_CACHE_BYTES", "32 pounds")
    cache.trim()
    assert "PYC_CACHE_BYTES is '32 pounds', expected a size such as 500MB" in caplog.text
    assert cache.get(KEY) == DATA


def test_what_killed_builds_left_goes(folder):
    folder.mkdir()
    left = folder / "staged-0123456789abcdef"
    left.write_bytes(DATA)
    stream = Cache(folder).stream(KEY, iter(PIECES))
    next(stream)
    left.write_bytes(DATA)
    Cache(folder).trim()
    (filled,) = files_of(folder)  # another build's, which goes on
    assert filled != left
    assert len(b"".join(stream)) == len(DATA) - 5
    assert Cache(folder).get(KEY) == DATA


def test_a_file_that_is_swept_before_it_is_locked_is_made_again(folder, monkeypatch):
    """Under another name: who swept it may be about to remove that one."""
    folder.mkdir()
    names = []
    monkeypatch.setattr(secrets, "token_hex", lambda count: names.append(f"{len(names):016x}") or names[-1])
    swept = sweep_before_locks(monkeypatch, lambda: sweep_staged(folder), 3)
    assert b"".join(Cache(folder).stream(KEY, iter(PIECES))) == b"".join(PIECES)
    assert swept == [1, 1, 1] and len(names) == 4
    assert Cache(folder).get(KEY) == b"".join(PIECES)


def test_a_file_that_is_always_swept_is_not_kept(folder, monkeypatch, caplog):
    folder.mkdir()
    swept = sweep_before_locks(monkeypatch, lambda: sweep_staged(folder), 1000)
    assert b"".join(Cache(folder).stream(KEY, iter(PIECES))) == b"".join(PIECES)
    assert swept == [1] * MOST_TRIES
    assert "before it could be locked; try again" in caplog.text and not Cache(folder).has(KEY)


@pytest.mark.parametrize("kind", ["folder", "fifo", "socket", "link to nothing", "link to a device"])
def test_an_entry_that_is_no_file_is_computed_again(folder, kind):
    cache = Cache(folder)
    cache.put(KEY, DATA)
    path = entry_of(folder)
    path.unlink()
    if kind == "folder":
        path.mkdir()
        (path / "file").touch()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to("/dev/zero" if kind == "link to a device" else "nowhere")
    assert b"".join(cache.stream(KEY, iter(PIECES))) == DATA
    assert Cache(folder).get(KEY) == DATA


def test_a_cache_that_is_only_read_is_read(folder, monkeypatch, caplog):
    Cache(folder).put(KEY, DATA)

    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(folder))

    for name in ("utime", "mkdir", "unlink", "replace"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr("pyc.compiler.files.cache._Staged.open", refuse)
    cache = Cache(folder)
    assert cache.get(KEY) == DATA
    for _ in range(3):
        assert b"".join(cache.stream(OTHER, iter(PIECES))) == DATA
    assert caplog.text.count("WARNING") == 1
    assert "Read-only file system" in caplog.text


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("10GB", 10**10), ("1.5 GiB", 3 << 29), ("9" * 18, int("9" * 18)), ("0", 0)]
)
def test_the_limit_takes_units(text, size_bytes, monkeypatch, caplog):
    monkeypatch.setenv("PYC_CACHE_BYTES", text)
    assert limit_bytes() == size_bytes
    assert caplog.text == ""


@pytest.mark.parametrize("digits", ["9" * 5000, "-1", "1e9", ""])
def test_the_limit_may_be_any_text(folder, digits, monkeypatch):
    Cache(folder).put(KEY, DATA)
    monkeypatch.setenv("PYC_CACHE_BYTES", digits)
    Cache(folder).trim()
    assert Cache(folder).get(KEY) == DATA


def test_a_relative_folder_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYC_CACHE_DIR", "cache")
    assert cache_directory() == tmp_path / "cache"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYC_CACHE_DIR": "/here", "XDG_CACHE_HOME": "/there"}, "/here"),
        ({"PYC_CACHE_DIR": "", "XDG_CACHE_HOME": "/there"}, "/there/pyc"),
        ({"PYC_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/home/me"}, "/home/me/.cache/pyc"),
    ],
)
def test_where_it_lies(environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(cache_directory()) == expected
