"""A time limit of the program, whose handler raises TimeoutError, comes out of whatever waits: it is an OSError, and no
fault of a server, a disk or an artifact."""

import ast
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from interruptions import interrupted
from range_server import RangeServer, range_server
from remote_artifacts import QUICK

import pyc.runtime
from pyc.runtime.artifact.chunk_cache import ChunkCache
from pyc.runtime.artifact.format import Chunk, SignatureRecord
from pyc.runtime.artifact.trust.external_signer import _run
from pyc.runtime.artifact.trust.keys import read_small_text
from pyc.runtime.artifact.trust.signature_file import add_signature
from pyc.runtime.errors import FetchError, RunError
from pyc.runtime.executors.cpu.libraries import load_library
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.temporary_files import lock
from pyc.runtime.sources import connection
from pyc.runtime.sources.http import HttpSource, open_http
from pyc.runtime.sources.local import MappedFile
from pyc.runtime.sources.sequential import standard_input

__all__ = ["range_server"]

DATA = bytes(range(256)) * 2000


def places(work: object, *files: str) -> int:
    """How many places of these files let a time limit through; all, or AssertionError."""
    assert callable(work)
    return sum(1 for _ in interrupted(work, *files, error=TimeoutError))


_NAMES_OF_TIMEOUTS = {"OSError", "TimeoutError", "EnvironmentError", "IOError"}


def test_an_error_of_the_code_itself_is_caught() -> None:
    def caught(problem: type[Exception], *kinds: type[Exception]) -> bool:
        try:
            raise problem
        except unless_signalled(*kinds):
            return True

    assert caught(TimeoutError, OSError) and caught(ValueError, OSError, ValueError)
    with pytest.raises(KeyError):
        caught(KeyError, OSError, ValueError)


def test_every_handler_of_the_runtime_asks() -> None:
    """A handler that names OSError without asking takes a program's time limit for a fault of a file."""
    silent = [
        f"{path}:{node.lineno}"
        for path in Path(pyc.runtime.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ExceptHandler) and not isinstance(node.type, ast.Call)
        if node.type is not None and _NAMES_OF_TIMEOUTS & {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
    ]
    assert not silent


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_what_a_server_sends(range_server: RangeServer, knows_ranges: bool) -> None:
    range_server.files["/m"] = DATA
    range_server.knows_ranges = knows_ranges

    def work() -> None:
        source = HttpSource(range_server.url + "/m", QUICK) if knows_ranges else open_http(range_server.url + "/m")
        try:
            target = bytearray(400_000)
            source.read_into(10, memoryview(target))
            assert target == DATA[10:400_010]
        finally:
            source.close()

    assert places(work, "/sources/http.py", "/sources/connection.py", "/sources/sequential.py") > 50


def test_a_server_that_hangs_up(range_server: RangeServer) -> None:
    """Nobody tries again."""
    range_server.files["/m"] = DATA
    range_server.plan = lambda *asked: "reset"

    def work() -> None:
        with pytest.raises(FetchError):
            HttpSource(range_server.url + "/m", replace(QUICK, tries=2))

    assert places(work, "/sources/http.py", "/sources/connection.py") > 50


def test_a_host_of_two_addresses(range_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit comes at the first; the second would answer."""
    range_server.files["/m"] = DATA
    found = socket.getaddrinfo
    monkeypatch.setattr(connection.socket, "getaddrinfo", lambda *asked, **named: 2 * found(*asked, **named))

    def work() -> None:
        HttpSource(range_server.url + "/m", QUICK).close()

    assert places(work, "/sources/connection.py", "/socket.py") > 20


def test_a_local_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)

    def work() -> None:
        source = MappedFile(path)
        try:
            source.read_into(5, memoryview(bytearray(1000)))
            held = source.hold()
            assert held is not None
            held.check()
            held.close()
        finally:
            source.close()

    assert places(work, "/sources/local.py") > 10


@pytest.fixture
def pipe() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(writing)
    yield reading
    os.close(reading)


def test_standard_input(pipe: int) -> None:
    assert places(lambda: standard_input(pipe)._read(memoryview(bytearray(5))), "/sources/sequential.py") > 5


def test_the_cache_of_chunks(tmp_path: Path) -> None:
    cache, chunk = ChunkCache(tmp_path), Chunk(0, 1000, 1000, "none", "ab" * 32)

    def work() -> None:
        cache.put(chunk, memoryview(bytearray(1000)))
        assert cache._is_writable and cache.read_into(chunk, memoryview(bytearray(1000)))

    assert places(work, "/artifact/chunk_cache.py", "/host/temporary_files.py") > 20


def test_keys_and_signatures(tmp_path: Path) -> None:
    path, record = tmp_path / "m.pyca", SignatureRecord(bytes(32), bytes(64))
    path.write_text("text")
    files = ("/trust/signature_file.py", "/trust/keys.py", "/host/asked_program.py", "/host/home.py")
    assert places(lambda: read_small_text(path, 100), *files) > 3
    assert places(lambda: add_signature(path, record), *files, "/host/temporary_files.py") > 20
    assert places(lambda: _run(["true"], b""), *files) > 5


def test_a_lock_that_another_process_has(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert places(lambda: lock(descriptor, wait=True), "/host/temporary_files.py") > 1
    finally:
        os.close(descriptor)


def test_a_library_that_is_loaded() -> None:
    def work() -> None:
        with pytest.raises(RunError, match="does not load"):
            load_library(b"no library", "none")

    assert places(work, "/cpu/libraries.py") > 5
