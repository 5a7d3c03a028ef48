"""compiler/awaited.py: what no thread does is done by who waits, once."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pyc.compiler import awaited
from pyc.compiler.awaited import Awaited


class EndedThreads(ThreadPoolExecutor):
    """A pool whose threads ended before their first line, as they do where memory is short."""

    def submit(self, *_, **__):
        return Future()


class NoThreads(ThreadPoolExecutor):
    """A pool where the system has no more threads."""

    def submit(self, *_, **__):
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("pool", [EndedThreads, NoThreads, ThreadPoolExecutor])
def test_a_result_is_made_once_however_often_it_is_asked_for(pool, monkeypatch):
    monkeypatch.setattr(awaited, "PATIENCE_S", 0.01)
    calls = []
    with pool(1) as threads:
        result = Awaited(threads, lambda: calls.append(1) or len(calls))
        assert [result.result(), result.result()] == [1, 1]
    assert calls == [1]
    assert result.done()


@pytest.mark.parametrize("pool", [EndedThreads, NoThreads, ThreadPoolExecutor])
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
