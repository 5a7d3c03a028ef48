"""What an exception of a signal handler must not keep, as long as somebody keeps it: locks, and the process's umask."""

import fcntl
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interruptions import interrupted

from pyc.runtime.artifact.chunk_fetcher import ChunkFetcher
from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust import signature_file
from pyc.runtime.host import unfinished
from pyc.runtime.host.temporary_files import create_locked
from pyc.runtime.host.umask import current_umask

PLACES = ("/runtime/host/", "/runtime/artifact/trust/signature_file.py", "contextlib.py")


def test_the_end_of_the_process_is_not_held_off(tmp_path: Path) -> None:
    """Nor does who makes the next file wait for ever."""
    names = iter(range(10_000))

    def work() -> None:
        os.close(create_locked(lambda: tmp_path / str(next(names)), os.O_WRONLY))

    moment = 0
    for moment in interrupted(work, *PLACES):
        assert unfinished._making.lock.acquire(blocking=False), moment
        unfinished._making.lock.release()
    assert moment > 10


def test_nothing_is_made_once_the_end_has_begun(tmp_path: Path) -> None:
    unfinished.kill_programs()
    try:
        with pytest.raises(KeyboardInterrupt):
            create_locked(lambda: tmp_path / "file", os.O_WRONLY)
    finally:
        unfinished.resume()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_signatures_is_not_locked(tmp_path: Path) -> None:
    artifact, moment = tmp_path / "m.pyca", 0
    record = SignatureRecord(bytes(32), bytes(64))
    for moment in interrupted(lambda: signature_file.add_signature(artifact, record), *PLACES):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.fail(f"it is locked: {moment}")
        finally:
            os.close(descriptor)
    assert moment > 20
    assert signature_file.read_signatures(artifact) == (record,)


def test_who_ends_a_fetch_does_not_wait_for_a_lock() -> None:
    """Condition and Event of the standard library take theirs in Python code, where a handler may raise behind it."""

    def work() -> None:
        nonlocal fetcher
        fetcher = ChunkFetcher(source, (), 0, (), str)
        fetcher._threads = [threading.current_thread()]  # another fetches
        fetcher.wait()
        fetcher.stop()

    source: Any = SimpleNamespace(close=lambda: None)
    fetcher, moment = ChunkFetcher(source, (), 0, (), str), 0
    for moment in interrupted(work, "/runtime/artifact/chunk_fetcher.py", "/threading.py"):
        assert fetcher._state.acquire(timeout=1), moment
        fetcher._state.release()
    assert moment > 5


def test_the_umask_is_what_it_was() -> None:
    former, moment = os.umask(0o027), 0
    try:
        for moment in interrupted(current_umask, *PLACES):
            mask = os.umask(0o027)
            assert mask == 0o027, moment
        assert current_umask() == 0o027
    finally:
        os.umask(former)
    assert moment > 1
