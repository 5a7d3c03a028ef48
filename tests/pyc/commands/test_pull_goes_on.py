"""`pyc pull` that is cut off within a chunk, again and again: what had come is used, and never taken for right."""

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from interruptions import interrupted
from range_server import RangeServer, range_server
from remote_artifacts import MODEL, PIECE_BYTES, START_BYTES, folder, small_pieces

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.runtime.artifact import kept_blocks
from pyc.runtime.artifact.chunk_fetcher import ChunkFetcher
from pyc.runtime.artifact.format import MAGIC, Generation, Provenance, payload_offset
from pyc.runtime.artifact.partial_file import pull_into
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.host.output_file import OutputFile

__all__ = ["folder", "range_server", "small_pieces"]

CHUNK_BYTES = 2_000_000
QUOTA_BYTES = 300_000


def artifact_of(seed: int, folder: Path) -> bytes:
    """An artifact whose first chunk is nearly all of it."""
    noise = random.Random(seed)
    with ArtifactWriter(folder / "m.pyca", "none") as writer:
        writer.add_tensor("large", "u8", (CHUNK_BYTES,), [noise.randbytes(CHUNK_BYTES)])
        writer.add_tensor("small", "u8", (5000,), [noise.randbytes(5000)])
        writer.add_blob("tokenizer.json", b"{}")
        writer.finish(model=MODEL, generation=Generation(), provenance=Provenance("{}", (), (), ()))
    return (folder / "m.pyca").read_bytes()


@pytest.fixture
def server(range_server: RangeServer, tmp_path: Path, small_pieces: None) -> RangeServer:
    (tmp_path / "served").mkdir()
    range_server.files["/m.pyca"] = artifact_of(0, tmp_path / "served")
    return range_server


@pytest.fixture
def pull(server: RangeServer, pyc) -> Callable[[], tuple[int, str, str]]:
    return lambda: pyc("pull", f"{server.url}/m.pyca", "--allow-unsigned")


def give(server: RangeServer, quota_bytes: int) -> None:
    """Let a server give about so many bytes more, and be busy from then on."""
    stop = server.sent_bytes + quota_bytes
    server.plan = lambda number, path, first, last: "" if server.sent_bytes < stop else "busy"


def serve_all(server: RangeServer) -> None:
    server.plan = lambda number, path, first, last: ""
    server.asked.clear()
    server.sent_bytes = 0


def large_chunk(folder: Path) -> tuple[int, int]:
    """Where the first chunk of the artifact in a folder begins and ends."""
    with open_artifact(folder / "m.pyca") as opened:
        chunk = opened.header.chunks[0]
        start = payload_offset(opened.prelude.header_size) + chunk.offset
        assert chunk.stored_bytes == CHUNK_BYTES
        return start, start + chunk.stored_bytes


def is_whole(server: RangeServer, folder: Path) -> bool:
    return [path.name for path in folder.iterdir()] == ["m.pyca"] and (folder / "m.pyca").read_bytes() == server.files[
        "/m.pyca"
    ]


def test_a_server_that_goes_away_again_and_again(server, folder, pull):
    """No try gets a quarter of the chunk, and together they get it about once."""
    whole = server.files["/m.pyca"]
    for _ in range(20):
        before = server.sent_bytes
        give(server, QUOTA_BYTES)
        code, out, err = pull()
        if code == 0:
            break
        assert (code, out) == (14, "") and "gave up after 5 tries" in err
        assert server.sent_bytes - before < CHUNK_BYTES // 3
        assert [path.name for path in folder.iterdir()] == [".m.pyca.part"]
    assert (code, err) == (0, "") and "MB of them there already" in out
    assert is_whole(server, folder)
    assert server.sent_bytes < 2 * len(whole), "of each try, what three connections had on the wire may be lost"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_pull_that_is_ended_again_and_again(number, server, folder):
    """Before any of its requests has been answered whole; the first of each try is for the header."""
    server.bytes_per_s = 1_500_000
    first_bytes = 256 << 10
    line = [sys.executable, "-m", "pyc", "pull", f"{server.url}/m.pyca", "--allow-unsigned"]
    environment = {**os.environ, "PYC_CHUNK_CACHE": "off"}
    tries = 0
    while not (folder / "m.pyca").exists():
        tries += 1
        assert tries < 15
        before = server.sent_bytes
        process = subprocess.Popen(line, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            time.sleep(0.005)
            if server.sent_bytes - before > first_bytes + 400_000:
                process.send_signal(number)
                assert process.wait(20) in (130, -number, 0)
        assert server.sent_bytes - before < CHUNK_BYTES // 2
    assert tries > 3 and is_whole(server, folder)
    assert server.sent_bytes < tries * first_bytes + 2 * CHUNK_BYTES


def flip(part: Path, start: int, stop: int) -> None:
    with part.open("r+b") as file:
        data = bytearray(file.read())
        at = next(at for at in range(start + START_BYTES, stop) if data[at])
        data[at] ^= 1
        file.seek(0)
        file.write(data)


def lose(part: Path, start: int, stop: int) -> None:
    """As a power failure may: the note came to the disk, the bytes did not."""
    with part.open("r+b") as file:
        file.seek(start)
        file.write(bytes(stop - start))


@pytest.mark.parametrize("harm", [flip, lose])
def test_what_was_kept_and_is_wrong(harm, server, folder, pull, tmp_path):
    """The chunk is fetched anew, once."""
    give(server, QUOTA_BYTES * 2)
    assert pull()[0] == 14
    start, stop = large_chunk(tmp_path / "served")
    harm(folder / ".m.pyca.part", start, stop)
    serve_all(server)
    code, out, err = pull()
    assert (code, err) == (0, "") and is_whole(server, folder)
    assert "there already" not in out, "what was of no use"
    assert server.sent_bytes < 2 * CHUNK_BYTES
    assert [first for _, first, last, _ in server.asked if last - first > 2 * PIECE_BYTES] == [start]


def test_what_was_kept_is_wrong_and_so_is_the_network_once(server, folder, pull, tmp_path):
    """What an earlier try left counts as no try of the chunk's two."""
    give(server, QUOTA_BYTES * 2)
    assert pull()[0] == 14
    flip(folder / ".m.pyca.part", *large_chunk(tmp_path / "served"))
    serve_all(server)
    wrong = iter([True])
    server.plan = lambda number, path, first, last: (
        "flipped" if last - first > CHUNK_BYTES // 2 and next(wrong, False) else ""
    )
    code, _, err = pull()
    assert (code, err) == (0, "") and is_whole(server, folder) and not next(wrong, False)


def test_wrong_bytes_of_a_network_are_not_kept(server, folder, pull):
    """A pull that ends as they are fetched once more has forgotten them."""
    server.plan = lambda number, path, first, last: (
        "" if first == 0 else "busy" if last - first > PIECE_BYTES * 2 else "flipped"
    )
    assert pull()[0] == 14
    serve_all(server)
    assert pull()[0] == 0 and is_whole(server, folder)
    assert server.sent_bytes < CHUNK_BYTES + 50_000, "once"


def test_another_version_in_between(server, folder, pull, tmp_path):
    """What is noted of one says nothing of the other, be it as long: nothing is taken for right that is the other's."""
    first = server.files["/m.pyca"]
    (tmp_path / "other").mkdir()
    second = artifact_of(1, tmp_path / "other")
    for data in (first, second, first):
        server.files["/m.pyca"] = data
        give(server, QUOTA_BYTES)
        assert pull()[0] == 14
    server.files["/m.pyca"] = second
    serve_all(server)
    code, _, err = pull()
    assert (code, err) == (0, "") and is_whole(server, folder)
    assert server.sent_bytes < CHUNK_BYTES + 50_000, "once: the other's pieces are not tried"


@pytest.mark.parametrize("note", [b"", b"\1" * 9000, bytes(9000), "all there"])
def test_any_note_does_no_harm(note, server, folder, pull):
    """One that says that all is there is of a chunk that was damaged later."""
    give(server, QUOTA_BYTES)
    assert pull()[0] == 14
    part, size_bytes = folder / ".m.pyca.part", len(server.files["/m.pyca"])
    data = part.read_bytes()
    if note == "all there":
        note = data[size_bytes : size_bytes + 80] + b"\1" * 1000
    part.write_bytes(data[:size_bytes] + note)
    give(server, QUOTA_BYTES)
    assert pull()[0] == 14
    serve_all(server)
    code, _, err = pull()
    assert (code, err) == (0, "") and is_whole(server, folder)
    assert server.sent_bytes < CHUNK_BYTES - QUOTA_BYTES // 3, "the try in between got further"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_as_bytes_come_is_not_the_network(error, server, folder, pull, monkeypatch):
    monkeypatch.setattr(kept_blocks, "KEEP_S", 0.0)
    write, calls = os.pwrite, iter(range(1000))

    def failing(descriptor, data, offset):
        if next(calls) > 8:
            raise OSError(error, os.strerror(error))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    code, out, err = pull()
    assert (code, out, err.count("\n")) == (8, "", 1)
    assert f".m.pyca.part: cannot be written: {os.strerror(error)}" in err
    assert len(server.asked) == len({first for _, first, _, _ in server.asked}), "nothing is asked for again"
    monkeypatch.setattr(os, "pwrite", write)
    assert pull()[0] == 0 and is_whole(server, folder)


def test_files_may_be_as_large_as_the_artifact_and_no_larger(server, folder, pull, monkeypatch):
    """Nor are they: without a note it goes as ever."""
    truncate, most = os.ftruncate, len(server.files["/m.pyca"])
    refused = []

    def limited(descriptor, size_bytes):
        if size_bytes > most:
            refused.append(size_bytes)
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        truncate(descriptor, size_bytes)

    monkeypatch.setattr(os, "ftruncate", limited)
    assert pull()[0] == 0 and refused and is_whole(server, folder)


@pytest.mark.parametrize("threads", [0, 4])
def test_a_signal_at_any_point(threads, server, folder, monkeypatch):
    """Whatever it leaves, damaged or not, is used or fetched anew next time. Without threads, this one fetches."""
    if not threads:
        monkeypatch.setattr(ChunkFetcher, "start", lambda self: None)
        for name in ("LEAST_PIECE_BYTES", "MOST_PIECE_BYTES"):
            monkeypatch.setattr(f"pyc.runtime.artifact.chunk_fetcher.{name}", 1 << 20)
    part, target = folder / ".m.pyca.part", folder / "m.pyca"

    def work() -> None:
        target.unlink(missing_ok=True)
        with open_artifact(f"{server.url}/m.pyca") as opened:
            pull_into(opened, OutputFile(target, (), MAGIC, force=False), lambda size_bytes: None)

    for moment in interrupted(work, "/kept_blocks.py", "/partial_file.py", "/chunk_fetcher.py"):
        assert not target.exists() or is_whole(server, folder)
        if moment % 5 == 0:
            part.unlink(missing_ok=True)
        elif moment % 3 == 0 and part.exists() and part.read_bytes()[2 * START_BYTES : CHUNK_BYTES].strip(b"\0"):
            flip(part, START_BYTES, CHUNK_BYTES)
    assert moment > 40 and is_whole(server, folder)


def test_without_locks_nothing_is_written_before_it_is_verified(server, folder, pull, monkeypatch):
    """Another pull may have the same file there, and rename it."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    give(server, QUOTA_BYTES)
    assert pull()[0] == 14
    left = (folder / ".m.pyca.part").read_bytes()
    assert len(left) == len(server.files["/m.pyca"]) and not left[START_BYTES:].strip(b"\0")
    serve_all(server)
    assert pull()[0] == 0 and is_whole(server, folder)


def test_a_chunk_that_is_in_the_cache_by_now(server, folder, pull, pyc, tmp_path, monkeypatch):
    """What was kept of it, which may be wrong, does not stay between what comes from there."""
    give(server, QUOTA_BYTES * 2)
    assert pull()[0] == 14
    flip(folder / ".m.pyca.part", *large_chunk(tmp_path / "served"))
    monkeypatch.setenv("PYC_CHUNK_CACHE", "on")
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    serve_all(server)
    assert pyc("verify", f"{server.url}/m.pyca", "--allow-unsigned")[0] == 0
    serve_all(server)
    code, _, err = pull()
    assert (code, err) == (0, "") and is_whole(server, folder)
    assert server.sent_bytes < CHUNK_BYTES // 10


def test_a_whole_stream_over_what_was_kept(server, folder, pull, tmp_path):
    """A server that knows no ranges any more sends all of it, which is what is taken."""
    give(server, QUOTA_BYTES * 2)
    assert pull()[0] == 14
    flip(folder / ".m.pyca.part", *large_chunk(tmp_path / "served"))
    serve_all(server)
    server.knows_ranges = False
    code, _, err = pull()
    assert (code, err) == (0, "") and is_whole(server, folder)
