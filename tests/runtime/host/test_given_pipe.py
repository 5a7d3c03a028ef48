"""Pipes that the command line names, as `--trust <(...)` and `--key <(...)` do: read to their end, within bounds."""

import os
import threading
from pathlib import Path

import pytest

from pyc.runtime.artifact.trust.keys import new_key_text, read_signing_key, read_small_text
from pyc.runtime.artifact.trust.policy import trust_of
from pyc.runtime.errors import ArtifactError, TrustError
from pyc.runtime.host import given_pipe
from pyc.runtime.host.given_pipe import read_given_pipe


@pytest.fixture
def pipe():
    """`pipe(data)`: the path of a pipe into which another thread writes; without data nobody does."""
    opened, writers = [], []

    def make(data: bytes | None, folder: str = "/dev/fd") -> Path:
        reading, writing = os.pipe()
        opened.append(reading)

        def write() -> None:
            with open(writing, "wb", buffering=0) as file:
                for start in range(0, len(data or b""), 7):
                    try:
                        file.write((data or b"")[start : start + 7])
                    except BrokenPipeError:
                        return

        if data is None:
            opened.append(writing)
        else:
            writers.append(threading.Thread(target=write))
            writers[-1].start()
        return Path(folder) / str(reading)

    yield make
    for descriptor in opened:
        os.close(descriptor)
    for writer in writers:
        writer.join()


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_a_key_and_a_policy_of_a_pipe(pipe, folder: str) -> None:
    text = new_key_text()
    key = read_signing_key(pipe(text.encode(), folder)).public
    assert trust_of(str(pipe(key.text().encode(), folder))).keys == trust_of(key.text()).keys
    policy = trust_of(str(pipe(f'keys = ["{key.text()}"]\n'.encode(), folder)))
    assert [each.raw for each in policy.keys or ()] == [key.raw]


def test_what_has_no_end_and_what_never_comes(pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_pipe, "SECONDS", 0)
    path = pipe(None)
    for read in (read_small_text, read_signing_key):
        with pytest.raises(ArtifactError, match=r"/fd/\d+: cannot be read: nothing came for 0 s"):
            read(path)
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="more than 4096 bytes"):
        read_small_text(pipe(bytes(100_000)))


def test_what_is_no_such_pipe(tmp_path: Path) -> None:
    """A named pipe lies in a folder, where anybody may have put it; a file by its descriptor is a file."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/fd/0"), Path("/dev/fd/x"), Path("/dev/fd/63/..")):
        assert read_given_pipe(path, 10) is None
    with open(tmp_path / "file", "wb+") as file:
        assert read_given_pipe(Path(f"/dev/fd/{file.fileno()}"), 10) is None
    with pytest.raises(ArtifactError, match="not a regular file"):
        read_small_text(tmp_path / "pipe")


@pytest.fixture
def named_pipe(tmp_path: Path):
    """`named_pipe(data, mode)`: the path of the descriptor of a named pipe that holds data; its writer has left."""
    opened = []

    def make(data: bytes, mode: int) -> Path:
        path = tmp_path / f"pipe{len(opened)}"
        os.mkfifo(path)
        path.chmod(mode)
        opened.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        with open(path, "wb", buffering=0) as file:
            file.write(data)
        return Path(f"/dev/fd/{opened[-1]}")

    yield make
    for descriptor in opened:
        os.close(descriptor)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_named_pipe_that_others_may_write_to_is_not_believed(named_pipe, mode: int) -> None:
    key = new_key_text()
    public = read_signing_key(named_pipe(key.encode(), 0o600)).public.text()
    policy = f'keys = ["{public}"]\n'
    for text in (policy, public):
        assert trust_of(str(named_pipe(text.encode(), 0o644))).keys == trust_of(public).keys
    for text in (policy, public):
        with pytest.raises(TrustError, match=rf"others may write to \(mode {mode:o}\), and so change what is trusted"):
            trust_of(str(named_pipe(text.encode(), mode)))
    said = rf"private key from a pipe that others may read or write to \(mode {mode:o}\)"
    with pytest.raises(ArtifactError, match=said):
        read_signing_key(named_pipe(key.encode(), mode))


def test_a_named_pipe_that_others_may_read_brings_no_private_key(named_pipe) -> None:
    with pytest.raises(ArtifactError, match=r"others may read or write to \(mode 644\)"):
        read_signing_key(named_pipe(new_key_text().encode(), 0o644))
