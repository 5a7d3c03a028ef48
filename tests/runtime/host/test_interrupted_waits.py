"""Where threads wait for each other, a signal handler that raises in the middle leaves no lock held.

On a lock that is left held a test would wait for ever: an alarm ends it.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from interruptions import interrupted
from remote_artifacts import write_artifact

from pyc.runtime.artifact.chunk_fetcher import ChunkFetcher
from pyc.runtime.artifact.chunks import Wanted
from pyc.runtime.artifact.format import payload_offset
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, FetchError
from pyc.runtime.generation.waiting_coroutines import WaitingCoroutines
from pyc.runtime.host.interruptible import interruptible
from pyc.runtime.host.threads import may_start_threads
from pyc.runtime.sources import http
from pyc.runtime.sources.http import HttpSource, _Filling
from pyc.runtime.sources.protocol import Retries
from pyc.runtime.sources.response import TryAgainError

LIMIT_S = 60


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    def handler(number: int, frame: object) -> None:
        raise AssertionError("waits for ever")

    former = signal.signal(signal.SIGALRM, handler)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


def in_a_thread(work: Callable[[], object]) -> None:
    """Do `work` in another thread, which has to end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT_S / 3)
    assert not thread.is_alive()


class Memory:
    """A remote source over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def expect(self, size_bytes: int) -> None:
        pass

    def read_parts(self, offset: int, parts: Sequence[memoryview]) -> None:
        for part in parts:
            part[:] = self._data[offset : offset + len(part)]
            offset += len(part)

    def close(self) -> None:
        pass


def test_a_fetch_that_is_interrupted_can_be_stopped(tmp_path: Path) -> None:
    data = write_artifact(tmp_path / "m.pyca")
    payload = payload_offset(int.from_bytes(data[24:32], "little"))
    with open_artifact(tmp_path / "m.pyca") as artifact:
        chunks = artifact.header.chunks
    fetchers: list[ChunkFetcher] = []

    def work() -> None:
        wanted = [Wanted(number, None) for number in range(len(chunks))]
        fetchers.append(ChunkFetcher(Memory(data), chunks, payload, wanted, str))  # type: ignore[arg-type]  # what it asks of one
        fetchers[-1].start(2)
        fetchers[-1].wait([0])
        fetchers[-1].wait()

    moments = 0
    for _ in interrupted(work, "/artifact/chunk_fetcher.py", "/threading.py"):
        moments += 1
        if fetchers:
            in_a_thread(fetchers.pop().stop)
    assert moments > 5


def test_a_stop_ends_a_wait(tmp_path: Path) -> None:
    data, begun, found = write_artifact(tmp_path / "m.pyca"), threading.Event(), list[str]()
    with open_artifact(tmp_path / "m.pyca") as artifact:
        chunks = artifact.header.chunks
    going_on = threading.Event()

    class Slow(Memory):
        def read_parts(self, offset: int, parts: Sequence[memoryview]) -> None:
            begun.set()
            going_on.wait(LIMIT_S)

        def close(self) -> None:
            waiter.join(LIMIT_S / 3)  # those who wait are told first
            found.append("closed")
            going_on.set()

    fetcher = ChunkFetcher(Slow(data), chunks, 0, [Wanted(0, None)], str)  # type: ignore[arg-type]  # as above
    fetcher.start(2)

    def wait() -> None:
        with pytest.raises(ArtifactError, match="the model was closed"):
            fetcher.wait()
        found.append("told")

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    begun.wait(LIMIT_S)
    fetcher.stop()
    assert found == ["told", "closed"]


def test_a_server_that_is_waited_for_between_tries_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(source: HttpSource, filling: _Filling) -> None:
        raise TryAgainError("answers 503")

    monkeypatch.setattr(HttpSource, "_try", busy)

    def work() -> None:
        with pytest.raises(FetchError, match="503"):
            HttpSource("http://127.0.0.1:1/x", Retries(tries=3, first_wait_s=0.0001))

    assert sum(1 for _ in interrupted(work, "/sources/http.py", "/threading.py")) > 5


def test_coroutines_wait_again_behind_an_interruption() -> None:
    class Request:
        is_served = False

        def tell(self, request: object) -> None:
            raise NotImplementedError

    def step(request: Request) -> None:
        request.is_served = True
        request.tell(request)

    coroutines, moments = WaitingCoroutines(), 0

    def work() -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(coroutines.wait(Request(), step))  # type: ignore[arg-type]  # what it asks of one
        finally:
            loop.close()

    for _ in interrupted(work, "/generation/waiting_coroutines.py", "/threading.py"):
        moments += 1
        in_a_thread(work)
    assert moments > 5


def test_a_wait_between_tries_that_a_second_close_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    class End:
        """A lock that is released twice while somebody waits for it, as two threads that close the source do."""

        def __init__(self) -> None:
            self._lock = threading.Lock()
            self._lock.acquire()

        def acquire(self, timeout: float) -> bool:
            sources[0].close()
            is_taken = self._lock.acquire(timeout=timeout)
            sources[0].close()
            return is_taken

        def release(self) -> None:
            self._lock.release()

    def busy(source: HttpSource, filling: _Filling) -> None:
        sources.append(source)
        raise TryAgainError("answers 503")

    sources: list[HttpSource] = []
    monkeypatch.setattr(HttpSource, "_try", busy)
    monkeypatch.setattr(http, "_held_lock", End)
    with pytest.raises(ArtifactError, match="already closed"):
        HttpSource("http://127.0.0.1:1/x", Retries())


def test_a_call_in_a_thread_of_its_own_ends_behind_an_interruption() -> None:
    def work() -> None:
        assert interruptible(lambda: never.acquire(timeout=0.05)) is False
        assert may_start_threads(2)

    never, others = threading.Lock(), set(threading.enumerate())
    never.acquire()
    for _ in interrupted(work, "/host/interruptible.py", "/host/threads.py", "/threading.py"):
        for thread in set(threading.enumerate()) - others:
            thread.join(LIMIT_S / 3)
            assert not thread.is_alive()
