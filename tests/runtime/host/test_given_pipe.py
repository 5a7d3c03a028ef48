"""Pipes that the command line names, as `--trust <(...)` and `--key <(...)` do: read to their end, within bounds."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from pyc.runtime.artifact.trust.key_sources import choose_key
from pyc.runtime.artifact.trust.keys import new_key_text, public_key_of, read_signing_key, read_small_text
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
    """A pipe in a folder, where anybody may have put it, unless the user named it; a file by its descriptor is a file;
    an output is read by others."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", *map(Path, ("/dev/fd/1", "/dev/fd/2", "/dev/fd/x", "/dev/fd/63/.."))):
        assert read_given_pipe(path, 10) is None
    with open(tmp_path / "file", "wb+") as file:
        assert read_given_pipe(Path(f"/dev/fd/{file.fileno()}"), 10) is None
    with pytest.raises(ArtifactError, match="not a regular file"):
        read_small_text(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_standard_input_that_is_a_pipe(name: str) -> None:
    read = "from pathlib import Path; from pyc.runtime.host.given_pipe import read_given_pipe as read; import sys"
    line = [sys.executable, "-c", f"{read}; sys.stdout.buffer.write(read(Path({name!r}), 100) or b'none')"]
    done = subprocess.run(line, input=b"a key", capture_output=True, check=True)
    assert done.stdout == b"a key"
    assert subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout == b"none"


@pytest.fixture
def written_when_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`written_when_open(data, mode)`: the path of a pipe in a folder, which is opened to be written to when who reads
    has opened it."""

    def make(data: bytes, mode: int) -> Path:
        path = tmp_path / "key"
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        path.chmod(mode)

        def monotonic() -> float:
            with suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as file:
                file.write(data)
            monkeypatch.setattr(given_pipe.time, "monotonic", lambda: 0.0)
            return 0.0

        monkeypatch.setattr(given_pipe.time, "monotonic", monotonic)
        return path

    return make


def test_a_pipe_in_a_folder_that_the_user_names(written_when_open, monkeypatch: pytest.MonkeyPatch) -> None:
    text = new_key_text()
    chosen = choose_key(file=written_when_open(text.encode(), 0o600))
    public = chosen.key.public.text()
    assert public == read_signing_key(written_when_open(text.encode(), 0o600), is_given=True).public.text()
    for content in (public, f'keys = ["{public}"]\n'):
        assert trust_of(str(written_when_open(content.encode(), 0o644))).keys == trust_of(public).keys
    assert public_key_of(str(written_when_open(public.encode(), 0o644))).raw == chosen.key.public.raw
    with pytest.raises(ArtifactError, match=r"/key: refused: a pipe that others may read or write to \(mode 640\)"):
        choose_key(file=written_when_open(text.encode(), 0o640))
    for mode in (0o622, 0o620, 0o602):
        with pytest.raises(ArtifactError, match=rf"/key: refused: a pipe that others may write to .mode {mode:o}\)"):
            read_small_text(written_when_open(text.encode(), mode), is_given=True)
    path, owner = written_when_open(text.encode(), 0o600), os.geteuid()
    if owner == 0:  # whom everybody believes
        os.chown(path, owner := 1, 1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ArtifactError, match=f"a pipe of user {owner}; let the shell make one"):
        read_small_text(path, is_given=True)


def test_a_pipe_whose_name_is_gone_when_it_is_read(written_when_open, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sh -c 'gpg -d release.gpg > pipe; rm pipe' &`; what takes the name meanwhile says nothing of what was read."""
    text = new_key_text()
    public = choose_key(file=written_when_open(text.encode(), 0o600)).key.public.text()
    removed: list[Path] = []

    def unnamed(content: str, mode: int, *, is_replaced: bool) -> Path:
        path = written_when_open(content.encode(), mode)
        read = os.read

        def read_then_remove(descriptor: int, size: int) -> bytes:
            monkeypatch.setattr(os, "read", read)
            path.unlink()
            removed.append(path)
            if is_replaced:
                path.touch()
                path.chmod(0o666)
            return read(descriptor, size)

        monkeypatch.setattr(os, "read", read_then_remove)
        return path

    for is_replaced in (False, True):
        path = unnamed(text, 0o600, is_replaced=is_replaced)
        assert read_signing_key(path, is_given=True).public.text() == public
        for content in (public, f'keys = ["{public}"]\n'):
            path = unnamed(content, 0o644, is_replaced=is_replaced)
            assert trust_of(str(path)).keys == trust_of(public).keys
    assert len(removed) == 6


@pytest.mark.parametrize("private", [False, True])
def test_a_file_in_a_pipes_place(private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as a file, by the rules for one."""
    path, text = tmp_path / "key", new_key_text()
    os.mkfifo(path, 0o600)
    opened = os.open

    def replace_then_open(*given, **named) -> int:
        monkeypatch.setattr(os, "open", opened)
        path.unlink()
        path.write_text(text)
        path.chmod(0o644)
        return opened(*given, **named)

    monkeypatch.setattr(os, "open", replace_then_open)
    if private:
        with pytest.raises(ArtifactError, match=r"private key that others may read \(mode 644\)"):
            read_signing_key(path, is_given=True)
    else:
        assert read_small_text(path, is_given=True) == text


def test_a_pipe_in_a_folder_that_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for an empty one: whoever writes to it may come later."""
    os.mkfifo(tmp_path / "key", 0o600)
    monkeypatch.setattr(given_pipe, "SECONDS", 0)
    for read in (read_small_text, read_signing_key):
        with pytest.raises(ArtifactError, match="key: cannot be read: nothing came for 0 s"):
            read(tmp_path / "key", is_given=True)


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
        with pytest.raises(TrustError, match=rf"refused: a pipe that others may write to \(mode {mode:o}\)"):
            trust_of(str(named_pipe(text.encode(), mode)))
    said = rf"refused: a pipe that others may read or write to \(mode {mode:o}\)"
    with pytest.raises(ArtifactError, match=said):
        read_signing_key(named_pipe(key.encode(), mode))


def test_a_named_pipe_that_others_may_read_brings_no_private_key(named_pipe) -> None:
    with pytest.raises(ArtifactError, match=r"others may read or write to \(mode 644\)"):
        read_signing_key(named_pipe(new_key_text().encode(), 0o644))
