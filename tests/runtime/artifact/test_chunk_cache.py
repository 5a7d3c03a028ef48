"""runtime/artifact/chunk_cache.py: verified chunks that artifacts and processes share."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from range_server import RangeServer, range_server
from remote_artifacts import write_artifact
from swept_writers import sweep_before_locks

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.cache_folder import measure, prune, sweep_staged

__all__ = ["range_server"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(range_server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RangeServer:
    monkeypatch.setattr("pyc.runtime.sources.http.START_BYTES", 8192)
    range_server.files["/m.pyca"] = write_artifact(tmp_path / "m.pyca")
    return range_server


def fetched(server: RangeServer, name: str = "m.pyca", *, path: Path | None = None) -> int:
    """How many bytes of chunks come over the network when all tensors of the artifact are asked for."""
    server.asked.clear()
    with open_artifact(f"{server.url}/{name}") as artifact, open_artifact(path or Path()) as expected:
        got = artifact.tensors()
        assert all(np.array_equal(array, expected.tensors()[key]) for key, array in got.items())
    return sum(last + 1 - first for _, first, last, _ in server.asked[1:])


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("chunks/??/*"))


def test_a_second_load_fetches_the_header_alone(server: RangeServer, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.pyca"
    former = os.umask(0o022)
    try:
        assert fetched(server, path=path) > 800_000
    finally:
        os.umask(former)
    assert fetched(server, path=path) == 0
    size = measure(folder)
    assert size.chunks == len(entries(folder)) > 8 and size.entries == 0 and size.leftovers == 0
    assert all(stat.S_IMODE(entry.stat().st_mode) == 0o644 for entry in entries(folder))


def test_another_version_fetches_what_changed(server: RangeServer, folder: Path, tmp_path: Path) -> None:
    fetched(server, path=tmp_path / "m.pyca")
    new = tmp_path / "new.pyca"
    server.files["/new.pyca"] = write_artifact(new, tensors=7)  # one tensor more, of 6,000 bytes
    assert 6000 <= fetched(server, "new.pyca", path=new) < 20_000


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "folder", "unreadable"])
def test_a_damaged_entry_is_fetched_again(
    damage: str, server: RangeServer, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.pyca"
    fetched(server, path=path)
    entry = max(entries(folder), key=lambda each: each.stat().st_size)
    data = entry.read_bytes()
    entry.unlink()
    if damage == "flip":
        entry.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif damage == "folder":
        entry.mkdir()
    elif damage == "unreadable":
        entry.symlink_to("/dev/zero")
    else:
        entry.write_bytes(data[:1000] if damage == "cut" else b"")
    assert len(data) <= fetched(server, path=path) < len(data) + 4096 * 2
    assert ("is damaged" in caplog.text) == (damage == "flip")
    if damage != "folder":
        assert entry.read_bytes() == data and not entry.is_symlink()
        assert fetched(server, path=path) == 0


def test_a_folder_that_cannot_be_written_to_is_read(
    server: RangeServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.pyca"
    fetched(server, path=path)
    removed = entries(folder)[:3]
    for entry in removed:
        entry.unlink()

    def refuse(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pyc.runtime.artifact.chunk_cache.create_locked", refuse)
    assert fetched(server, path=path) > 0
    assert caplog.text.count("Read-only file system; chunks are not kept") == 1
    assert not any(entry.exists() for entry in removed)


def test_no_space_is_said_once(server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "file"))
    assert fetched(server, path=tmp_path / "m.pyca") > 800_000


def test_a_file_that_is_swept_before_it_is_locked_is_made_again(
    server: RangeServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    swept = sweep_before_locks(monkeypatch, lambda: sweep_staged(folder), 3)
    fetched(server, path=tmp_path / "m.pyca")
    assert swept == [1, 1, 1]
    assert fetched(server, path=tmp_path / "m.pyca") == 0, "all chunks are kept"
    assert not list(folder.glob("staged-*"))


def test_a_file_that_is_whole_is_locked_until_it_has_its_name(
    server: RangeServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, swept = os.replace, []

    def sweep_and_replace(source: Path, target: Path) -> None:
        swept.append(sweep_staged(folder))
        replace(source, target)

    monkeypatch.setattr(os, "replace", sweep_and_replace)
    fetched(server, path=tmp_path / "m.pyca")
    assert swept and set(swept) == {0}
    assert fetched(server, path=tmp_path / "m.pyca") == 0


def test_verify_reads_what_the_server_has(server: RangeServer, folder: Path, tmp_path: Path) -> None:
    """Whatever is kept of it; a load goes on with what was verified once."""
    path = tmp_path / "m.pyca"
    whole = path.read_bytes()
    fetched(server, path=path)
    times = {entry: entry.stat().st_mtime_ns for entry in entries(folder)}
    server.asked.clear()
    with open_artifact(f"{server.url}/m.pyca") as artifact:
        artifact.verify_all()
        last = artifact.header.chunks[-1]
    assert sum(end + 1 - start for _, start, end, _ in server.asked[1:]) > 800_000
    assert {entry: entry.stat().st_mtime_ns for entry in times} == times, "nothing is written again"
    server.files["/m.pyca"] = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
    with open_artifact(f"{server.url}/m.pyca") as artifact, pytest.raises(ArtifactError, match="altered: its BLAKE3"):
        artifact.verify_all()
    assert last.stored_bytes > 5 and fetched(server, path=path) == 0
    for entry in entries(folder):
        entry.unlink()
    server.files["/m.pyca"] = whole
    with open_artifact(f"{server.url}/m.pyca") as artifact:
        artifact.verify_all()
    assert fetched(server, path=path) == 0, "what was verified is kept"


def test_switched_off(
    server: RangeServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    fetched(server, path=tmp_path / "m.pyca")
    assert not folder.exists()


def test_the_limit_holds(server: RangeServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYC_CACHE_BYTES", "400000")
    fetched(server, path=tmp_path / "m.pyca")
    assert 0 < measure(folder).chunk_bytes <= 400_000
    assert prune(folder, 0)[1] > 0 and not entries(folder)


SCRIPT = """
import sys
from pyc.runtime.artifact.reader import open_artifact
with open_artifact(sys.argv[1]) as artifact:
    artifact.verify_all()
"""


def test_processes_at_once(server: RangeServer, folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYC_CACHE_DIR": str(folder)}
    started = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, f"{server.url}/m.pyca"], env=environment) for _ in range(3)
    ]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    assert measure(folder).leftovers == 0
    assert fetched(server, path=tmp_path / "m.pyca") == 0
