"""runtime/sources/local.py: what may be opened, and files that end early."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pyc.runtime.errors import ArtifactError
from pyc.runtime.sources.local import open_file, safe_open
from pyc.runtime.sources.protocol import Mode

MODES: tuple[Mode, ...] = ("mmap", "pread")


def special(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "dangling_link":
        path.symlink_to(folder / "nothing")
    elif kind == "link_loop":
        path.symlink_to(path)
    elif kind == "device":
        return Path("/dev/zero")
    return path


@pytest.mark.parametrize(
    "kind",
    ["fifo", "directory", "socket", "dangling_link", "link_loop", "device", "missing", "missing/below"],
)
def test_only_regular_files_open(kind: str, tmp_path: Path) -> None:
    path = special(tmp_path, kind)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ArtifactError, match=r"not a regular file|cannot be opened") as caught:
        safe_open(path)
    assert str(path) in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_nul_in_a_path_is_an_error() -> None:
    with pytest.raises(ArtifactError, match="not a usable path"):
        safe_open("a\0b")


def test_a_link_is_followed_without_a_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    fd, size = safe_open(tmp_path / "link")
    os.close(fd)
    assert size == 3


def test_a_link_inside_the_root_is_followed(tmp_path: Path) -> None:
    """As in a hub cache: snapshots hold links to blobs."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "blobs" / "abc").write_bytes(b"abc")
    (tmp_path / "snapshots" / "model").symlink_to("../blobs/abc")
    fd, size = safe_open(tmp_path / "snapshots" / "model", root=tmp_path)
    os.close(fd)
    assert size == 3


@pytest.mark.parametrize("form", ["inside/../../secret", "link", "absolute", "folder_link/secret"])
def test_nothing_outside_the_root_opens(form: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder_link").symlink_to(tmp_path)
    path = tmp_path / "secret" if form == "absolute" else root / form
    with pytest.raises(ArtifactError, match="lies outside"):
        safe_open(path, root=root)


@pytest.mark.parametrize("mode", MODES)
def test_reads(mode: Mode, tmp_path: Path) -> None:
    data = os.urandom(10_000)
    (tmp_path / "file").write_bytes(data)
    source = open_file(tmp_path / "file", mode)
    buffer = bytearray(100)
    source.read_into(5000, memoryview(buffer))
    assert bytes(buffer) == data[5000:5100]
    assert source.size_bytes == 10_000
    view = source.view(5000, 100)
    assert (view is None) == (mode == "pread")
    if view is not None:
        assert bytes(view) == data[5000:5100]
        assert view.readonly
    source.close()
    source.close()
    with pytest.raises(ArtifactError, match="already closed"):
        source.read_into(0, memoryview(buffer))


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_file(mode: Mode, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = open_file(tmp_path / "file", mode)
    assert source.size_bytes == 0
    with pytest.raises(ArtifactError, match="ends at 0, expected 1 bytes"):
        source.read_into(0, memoryview(bytearray(1)))
    source.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("offset", "size"), [(0, 101), (100, 1), (1 << 60, 1), (99, 2)])
def test_nothing_beyond_the_end(mode: Mode, offset: int, size: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    source = open_file(tmp_path / "file", mode)
    with pytest.raises(ArtifactError, match=r"expected|ends at"):
        source.read_into(offset, memoryview(bytearray(size)))
    if mode == "mmap":
        with pytest.raises(ArtifactError, match="ends at 100"):
            source.view(offset, size)
    source.close()


def test_a_file_cut_while_open_is_an_error_when_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    source = open_file(path, "pread")
    os.truncate(path, 50_000)
    with pytest.raises(ArtifactError, match="ends at 50000, expected 60000 bytes"):
        source.read_into(40_000, memoryview(bytearray(20_000)))
    source.close()


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:7]], offset))
    (tmp_path / "file").write_bytes(bytes(range(100)))
    source = open_file(tmp_path / "file", "pread")
    buffer = bytearray(100)
    source.read_into(0, memoryview(buffer))
    source.close()
    assert bytes(buffer) == bytes(range(100))


def test_a_failing_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(5, "Input/output error")

    (tmp_path / "file").write_bytes(bytes(100))
    source = open_file(tmp_path / "file", "pread")
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(ArtifactError, match="read failed at 0: Input/output error"):
        source.read_into(0, memoryview(bytearray(10)))
    source.close()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_file_whose_status_cannot_be_had_is_an_error(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network share that is gone."""
    fstat, asked = os.fstat, []

    def fail(fd: int) -> os.stat_result:
        asked.append(fd)
        if len(asked) == failing:
            raise OSError(116, "Stale file handle")
        return fstat(fd)

    (tmp_path / "file").write_bytes(bytes(100))
    monkeypatch.setattr(os, "fstat", fail)
    with pytest.raises(ArtifactError, match="file: cannot be read: Stale file handle"):
        open_file(tmp_path / "file", "pread")
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(asked[0])


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no huge pages")
def test_a_mapping_asks_for_huge_pages(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    source = open_file(path, "mmap")
    view = source.view(0, 1 << 20)
    mapped = Path("/proc/self/smaps").read_text().partition(str(path))[2]
    flags = next(line for line in mapped.splitlines() if line.startswith("VmFlags:"))
    assert "hg" in flags.split()
    del view
    source.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_read_that_fails_names_the_place(mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    source = open_file(tmp_path / "file", mode)
    monkeypatch.setattr(os, "preadv", failing := FailingReads(os.preadv, fails_at=2))
    with pytest.raises(ArtifactError, match="file: read failed at 1600: Input/output error"):
        source.read_into(100, memoryview(bytearray(4000)))
    assert failing.count == 3
    source.close()


@pytest.mark.parametrize("mode", MODES)
def test_short_reads_go_on(mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(5000)
    (tmp_path / "file").write_bytes(data)
    source = open_file(tmp_path / "file", mode)
    monkeypatch.setattr(os, "preadv", FailingReads(os.preadv, fails_at=-1))
    target = memoryview(bytearray(4000))
    source.read_into(100, target)
    assert bytes(target) == data[100:4100]
    source.close()


class FailingReads:
    """`os.preadv` that gives at most 750 bytes, and fails at a call."""

    def __init__(self, read: Callable[..., int], fails_at: int) -> None:
        self.read, self.fails_at, self.count = read, fails_at, 0

    def __call__(self, descriptor: int, buffers: list[memoryview], offset: int) -> int:
        self.count += 1
        if self.count == self.fails_at + 1:
            raise OSError(5, "Input/output error")
        return self.read(descriptor, [buffers[0][:750]], offset)
