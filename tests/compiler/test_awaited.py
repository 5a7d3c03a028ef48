"""compiler/awaited.py: what no thread does is done by who waits, once."""

import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pyc.compiler import awaited
from pyc.compiler.awaited import Awaited, Workers


class EndedThreads(ThreadPoolExecutor):
    """A pool whose threads ended before their first line, as they do where memory is short."""

    def submit(self, *_, **__):
        return Future()


class NoThreads(ThreadPoolExecutor):
    """A pool where the system has no more threads."""

    def submit(self, *_, **__):
        raise RuntimeError("can't start new thread")


class Workers2(Workers):
    """As the others are made."""

    def __init__(self, workers):
        super().__init__(workers, "test")


@pytest.mark.parametrize("pool", [EndedThreads, NoThreads, ThreadPoolExecutor, Workers2])
def test_a_result_is_made_once_however_often_it_is_asked_for(pool, monkeypatch):
    monkeypatch.setattr(awaited, "PATIENCE_S", 0.01)
    calls = []
    with pool(1) as threads:
        result = Awaited(threads, lambda: calls.append(1) or len(calls))
        assert [result.result(), result.result()] == [1, 1]
    assert calls == [1]
    assert result.done()


@pytest.mark.parametrize("pool", [EndedThreads, NoThreads, ThreadPoolExecutor, Workers2])
def test_an_error_is_raised_where_it_is_waited_for(pool, monkeypatch):
    monkeypatch.setattr(awaited, "PATIENCE_S", 0.01)
    with pool(1) as threads, pytest.raises(ZeroDivisionError):
        Awaited(threads, lambda: 1 / 0).result()


@pytest.mark.parametrize("pool", [EndedThreads, NoThreads])
def test_what_is_not_begun_is_not_done(pool):
    with pool(1) as threads:
        result = Awaited(threads, lambda: 1)
        assert not result.done()
        result.cancel()


def test_workers_are_waited_for_whatever_interrupts():
    """`Thread.join` takes a thread for ended whose wait is interrupted, and the process would not wait at its end."""
    ended, main = threading.Event(), threading.main_thread().ident

    def work():
        for _ in range(3):
            time.sleep(0.1)
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.1)
        ended.set()

    pool = Workers(1, "test")
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        pool.submit(work)
        waiting = pool.submit(lambda: pytest.fail("it was not cancelled"))
        with pytest.raises(KeyboardInterrupt):
            pool.shutdown(cancel_futures=True)
    finally:
        signal.signal(signal.SIGINT, former)
    assert ended.is_set() and waiting.cancelled()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test")]


def test_work_that_no_thread_begins_holds_nothing_up(monkeypatch):
    monkeypatch.setattr(awaited, "PATIENCE_S", 0.01)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda *_: Future())
    with Workers(1, "test") as pool:
        future = pool.submit(print)
    assert future.cancelled()
