"""A source whose opening or closing a signal handler interrupts leaves no descriptor, nor what a memory file holds."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from interruptions import interrupted

from pyc.runtime.artifact import partial_file
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu import libraries
from pyc.runtime.host.home import open_regular
from pyc.runtime.sources.local import MappedFile, ReadFile
from pyc.runtime.sources.sequential import SequentialSource

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of what is closed as it goes


def left_by(work: Callable[[], object], file: str) -> int:
    """How many descriptors are left."""
    work()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    assert sum(1 for _ in interrupted(work, file)) > 3
    gc.collect()
    return len(os.listdir("/proc/self/fd")) - before


@pytest.mark.parametrize("kind", [MappedFile, ReadFile])
def test_a_file(kind: type[ReadFile], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5000))
    # One: that which os.open has just returned, which nobody can have yet.
    assert left_by(lambda: kind(path).close(), "/sources/local.py") <= 1


def test_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    assert left_by(lambda: open_regular(path).close(), "/host/home.py") <= 1  # as above


@pytest.mark.parametrize("size_bytes", [5000, None])
def test_a_stream(size_bytes: int | None) -> None:
    def work() -> None:
        source = SequentialSource("pipe", lambda target: len(target[:2500]), size_bytes)
        source.expect(5000)
        source.read_into(0, memoryview(bytearray(2000)))
        source.close()

    assert left_by(work, "/sources/sequential.py") == 0


def test_a_library() -> None:
    """The C library stands for a program: it is of no use as one, which is found late."""
    path = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    data = Path(path).read_bytes()

    def work() -> None:
        with pytest.raises(RunError, match="lacks pyc_"):
            libraries.load_library(data, "none")

    # One: where the handler comes as what is refused is unloaded.
    assert left_by(work, "/cpu/libraries.py") <= 1


def test_a_library_that_guards_is_never_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It handles signals; it stays, also where the making of the model that brought it is interrupted."""
    closed: list[int] = []
    monkeypatch.setattr(libraries, "dlclose", closed.append)
    monkeypatch.setattr(libraries, "_kept", set())

    class Owner:
        pass

    class Library:
        def __init__(self, handle: int) -> None:
            self._handle = handle
            self.descriptor = os.open("/proc/self/stat", os.O_RDONLY)

    owner, kept, other = Owner(), Library(1), Library(2)
    for library in (kept, other):
        libraries.unload_with(owner, library)  # type: ignore[arg-type]  # what it asks of one
    libraries.keep_loaded(kept)  # type: ignore[arg-type]
    del owner
    assert closed == [2]
    os.close(kept.descriptor)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_partial_file_that_others_could_write_to(error: type[BaseException], tmp_path: Path) -> None:
    """It is what it was, or its copy; nothing lies beside it, and who comes next may take it."""
    part = tmp_path / ".m.part"
    content = os.urandom(9000)

    def work() -> None:
        part.write_bytes(content)
        part.chmod(0o666)
        partial_file._renew(part)

    work()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in interrupted(work, "/runtime/artifact/partial_file.py", "/host/temporary_files.py", error=error):
        assert os.listdir(tmp_path) == [part.name] and part.read_bytes() == content
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) - before <= 2  # those that os.open has just returned
    os.close(partial_file._locked(part))
