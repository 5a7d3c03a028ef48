"""passes/emit_weights.py: pieces in order, few of them at a time, and errors with the weight's name."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from pyc.backends.cpu.storage import pieces
from pyc.compiler import awaited, storage
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.schemes import Dense, Int8Channel
from pyc.compiler.weights import Constant, Packed, Source, Stored
from pyc.passes.emit_weights import emit_weight
from pyc.runtime.errors import QuantizeError


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def files():
    with SourceFiles() as opened:
        yield opened


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_pieces_come_in_order_whatever_the_workers(source, pool, workers, files, monkeypatch):
    monkeypatch.setattr(storage, "PIECE_WEIGHTS", 64)
    values = np.random.default_rng(0).normal(size=(300, 4))
    expression = Packed(Stored(source(values), Int8Channel()), "panel16")
    wanted = b"".join(bytes(task()) for task in pieces(expression, files))
    got = [bytes(piece) for piece in emit_weight("w", expression, pool, workers, files, pieces)]
    assert len(got) == 19
    assert b"".join(got) == wanted


class EndedThreads(ThreadPoolExecutor):
    """A pool whose threads ended before their first line, as they do where memory is short."""

    def submit(self, *_, **__):
        return Future()


class NoThreads(ThreadPoolExecutor):
    """A pool where the system has no more threads."""

    def submit(self, *_, **__):
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("pool", [EndedThreads(), NoThreads()], ids=["ended", "none"])
def test_what_no_thread_begins_is_done_by_who_waits(pool, source, files, monkeypatch):
    monkeypatch.setattr(awaited, "PATIENCE_S", 0.01)
    monkeypatch.setattr(storage, "PIECE_WEIGHTS", 64)
    expression = Packed(Stored(source(np.random.default_rng(0).normal(size=(300, 4))), Int8Channel()), "panel16")
    wanted = b"".join(bytes(task()) for task in pieces(expression, files))
    assert b"".join(bytes(piece) for piece in emit_weight("w", expression, pool, 2, files, pieces)) == wanted


def test_few_pieces_are_in_flight(pool, files):
    """A reader that dawdles holds the workers back: at most two pieces a worker are computed ahead of it."""
    lock, started = threading.Lock(), []

    def task():
        with lock:
            started.append(1)
        return memoryview(b"x")

    stream = emit_weight("w", Constant((1.0,)), pool, 3, files, lambda expression, files: (task for _ in range(100)))
    for taken in range(1, 6):
        next(stream)
        time.sleep(0.01)
        assert len(started) <= taken + 6
    stream.close()
    time.sleep(0.02)
    assert len(started) <= 12


def test_an_error_names_the_weight(source, pool, files):
    expression = Stored(source(np.array([1e300]), "f64"), Dense("f32"))
    with pytest.raises(QuantizeError, match=r"^quantize: model\.norm\.weight: "):
        list(emit_weight("model.norm.weight", expression, pool, 2, files, pieces))


def test_after_an_error_nothing_more_is_computed(pool, files):
    done = []

    def tasks(expression, files):
        def fail():
            raise QuantizeError("no")

        yield fail
        for _ in range(50):
            yield lambda: done.append(1) or memoryview(b"x")

    missing = Source("nowhere", "w", "f32", (1,), 0, 4)
    with pytest.raises(QuantizeError, match=r"quantize: w: no"):
        list(emit_weight("w", missing, pool, 2, files, tasks))
    assert len(done) < 8
