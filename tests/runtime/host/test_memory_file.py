"""runtime/host/memory_file.py: who may make none, or none so large, is told what to do, wherever one is needed."""

import errno
import os
import resource
import sys
from collections.abc import Iterator

import pytest

from pyc.runtime.artifact.trust.external_signer import external_key
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cpu.libraries import load_library
from pyc.runtime.host.memory_file import memory_file
from pyc.runtime.sources.sequential import SequentialSource


def source_of(data: bytes, size_bytes: int | None = None) -> SequentialSource:
    given = iter([data])

    def read(target: memoryview) -> int:
        piece = next(given, b"")
        target[: len(piece)] = piece
        return len(piece)

    return SequentialSource("http://host/m.pyca", read, size_bytes)


@pytest.fixture
def small_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_limit_of_the_size_of_files_is_named() -> None:
    """Where the size is known before, as a server says it, and where it is not."""
    limit = r"File too large; the size of files is limited \(ulimit -f\) to less than its size: raise the limit$"
    with pytest.raises(RunError, match=rf"^http://host/m.pyca: 5000 bytes cannot be kept in memory: {limit}"):
        source_of(b"", 5000)
    source = source_of(bytes(5000))
    with pytest.raises(RunError, match=rf"cannot be kept in memory at byte \d+: {limit}"):
        source.read_into(0, memoryview(bytearray(5000)))


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EPERM, "Operation not permitted; allow memfd_create, as in the seccomp profile"),
        (errno.ENOSYS, "Function not implemented; allow memfd_create"),
        (errno.EACCES, r"Permission denied; allow memfd_create, .* of a service, or lower the sysctl vm\.memfd_noexec"),
        (errno.EMFILE, r"Too many open files; raise the limit \(ulimit -n\)"),
    ],
)
def test_a_file_that_may_not_be_made(number: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    says = f"no file in memory can be made: {says}"
    with pytest.raises(OSError, match=says):
        memory_file("x")
    with pytest.raises(ArtifactError, match=rf"^http://host/m.pyca: {says}"):
        source_of(b"")
    with pytest.raises(RunError, match=rf"program does not load on this system: .*{says}"):
        load_library(b"library", "avx9")
    with pytest.raises(ArtifactError, match=rf"cannot be run: {says}"):
        external_key(f"'{sys.executable}' -c 0")
