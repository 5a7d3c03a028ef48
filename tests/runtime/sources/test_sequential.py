"""runtime/sources/sequential.py: bytes that come once, in order, read in any."""

import errno
import io
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from remote_artifacts import write_artifact

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.sources import sequential
from pyc.runtime.sources.places import Remote
from pyc.runtime.sources.sequential import SequentialSource, standard_input


def source_of(data: bytes, size_bytes: int | None = None, most: int = 7000) -> SequentialSource:
    file = io.BytesIO(data)
    return SequentialSource("pipe", lambda target: file.readinto(target[:most]), size_bytes)


def test_any_order() -> None:
    data = os.urandom(50_000)
    source = source_of(data, len(data))
    for offset, size in ((40_000, 100), (0, 10), (49_990, 10), (20_000, 20_000)):
        target = memoryview(bytearray(size))
        source.read_into(offset, target)
        assert bytes(target) == data[offset : offset + size]
    view = source.view(100, 200)
    source.close()
    assert bytes(view) == data[100:300], "stays after closing"
    with pytest.raises(ArtifactError, match="already closed"):
        source.read_into(0, memoryview(bytearray(1)))


def test_what_memory_has_no_room_for_is_named_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "most_memory_bytes", lambda: 1e9)
    source = source_of(bytes(3_000_000), 2_500_000_000)
    source.read_into(0, memoryview(bytearray(1_500_000)))  # as for a header, whatever comes behind it
    source.expect(2_500_000_000)
    with pytest.raises(RunError, match=r"^pipe: 2\.5 GB of it are to be kept in memory, and this process may have"):
        source.read_into(2_900_000, memoryview(bytearray(100)))  # the first piece of one who verifies


def test_a_stream_of_which_some_was_lost_is_read_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be shifted, and called altered."""
    source, real = source_of(bytes(range(200))), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *arguments: (_ for _ in ()).throw(OSError(errno.ENOMEM, "none")))
    for _ in range(2):
        with pytest.raises(RunError, match=r"^pipe: cannot be kept in memory at byte 0: no memory"):
            source.read_into(0, memoryview(bytearray(100)))
        monkeypatch.setattr(os, "pwrite", real)


@pytest.mark.parametrize(("given", "says"), [(999, "ends at 999, expected 1000"), (1001, "has bytes after its end")])
def test_other_sizes(given: int, says: str) -> None:
    source = source_of(bytes(given), 1000)
    for _ in range(2):
        with pytest.raises(ArtifactError, match=says):
            source.read_into(500, memoryview(bytearray(500)))
    source.close()


def test_nothing_beyond_a_header_is_read_before_its_size_is_known() -> None:
    file = io.BytesIO(bytes(10_000))
    source = SequentialSource("pipe", file.readinto, None)
    source.read_into(0, memoryview(bytearray(160)))
    assert file.tell() == 160 and source.size_bytes is None
    source.close()


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_an_artifact_from_standard_input(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.pyca"
    data = write_artifact(path)
    reading, writing = os.pipe()

    def feed() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)

    thread = threading.Thread(target=feed)
    thread.start()
    monkeypatch.setattr(
        "pyc.runtime.sources.sequential.standard_input", lambda made=standard_input: made(reading)
    )
    with open_artifact(path) as file, open_artifact(Remote("-"), mode=mode) as piped:  # type: ignore[arg-type]
        piped.verify_ahead()
        got, expected = piped.tensors(), file.tensors()
        assert all(np.array_equal(got[name], expected[name]) for name in expected)
        assert piped.blob("tokenizer.json") == file.blob("tokenizer.json")
        piped.verify_all()
        assert piped.size_bytes == len(data)
    thread.join()
    os.close(reading)


def test_a_terminal_is_no_artifact() -> None:
    ours, theirs = os.openpty()
    with pytest.raises(ArtifactError, match=r"a terminal, expected an artifact: curl URL \| pyc run -"):
        standard_input(theirs)
    os.close(ours)
    os.close(theirs)
