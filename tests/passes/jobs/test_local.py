"""passes/jobs/local.py: jobs in order, few pieces at a time, errors with the weight's name, what the cache keeps."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from pyc.backends.cpu.storage import pieces, stored_tensor
from pyc.compiler import awaited, storage
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.schemes import Dense, Int8Channel
from pyc.compiler.weights import Packed, Stored
from pyc.passes.jobs import job as jobs_module
from pyc.passes.jobs.job import weight_jobs
from pyc.passes.jobs.local import LocalJobs
from pyc.runtime.errors import IngestError, QuantizeError


@pytest.fixture
def files():
    with SourceFiles() as opened:
        yield opened


class Backend:
    """The layouts of the CPU, without compiled code."""

    pieces = staticmethod(lambda expression, files, span: pieces(expression, files, span=span))


BACKENDS = {"cpu": Backend}


def jobs_of(expression, key="ab" * 32):
    return weight_jobs("model.norm.weight", expression, stored_tensor(expression), "cpu", key)


def taken(executor, jobs, files):
    return [b"".join(map(bytes, pieces)) for pieces in executor.results(jobs, files, BACKENDS)]


@pytest.fixture
def matrix(source, monkeypatch):
    """A weight of 19 pieces, and its bytes."""
    monkeypatch.setattr(storage, "PIECE_WEIGHTS", 64)
    expression = Packed(Stored(source(np.random.default_rng(0).normal(size=(300, 4))), Int8Channel()), "panel16")
    with SourceFiles() as opened:
        return expression, b"".join(bytes(task()) for task in pieces(expression, opened))


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("most", [1 << 20, 300, 64])
def test_pieces_come_in_order_whatever_the_workers_and_jobs(matrix, workers, most, files, monkeypatch):
    monkeypatch.setattr(jobs_module, "JOB_WEIGHTS", most)
    expression, wanted = matrix
    jobs = jobs_of(expression)
    assert len({job.key for job in jobs}) == len(jobs) == {1 << 20: 1, 300: 5, 64: 19}[most]
    assert [job.start for job in jobs] == [0, *(job.stop for job in jobs[:-1])] and jobs[-1].stop == 19
    with LocalJobs(workers, Cache(None)) as executor:
        assert b"".join(taken(executor, jobs, files)) == wanted


def test_a_weight_of_one_job_has_its_own_digest_as_key(matrix):
    assert [job.key for job in jobs_of(matrix[0])] == ["ab" * 32]


def test_results_are_taken_from_the_cache(matrix, files, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module, "JOB_WEIGHTS", 300)
    expression, wanted = matrix
    jobs, cache = jobs_of(expression), Cache(tmp_path)
    with LocalJobs(2, cache) as executor:
        assert not executor.has(jobs[0])
        assert b"".join(taken(executor, jobs, files)) == wanted
        assert (cache.hits, cache.misses) == (0, 5)
        cache.remove(jobs[2].key)
        assert executor.has(jobs[1]) and not executor.has(jobs[2])
        assert b"".join(taken(executor, jobs, files)) == wanted
        assert (cache.hits, cache.misses) == (4, 6)


class EndedThreads(ThreadPoolExecutor):
    """A pool whose threads ended before their first line, as they do where memory is short."""

    def submit(self, *_, **__):
        return Future()


class NoThreads(ThreadPoolExecutor):
    """A pool where the system has no more threads."""

    def submit(self, *_, **__):
        raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("pool", [EndedThreads(), NoThreads()], ids=["ended", "none"])
def test_what_no_thread_begins_is_done_by_who_waits(pool, matrix, files, monkeypatch):
    monkeypatch.setattr(awaited, "PATIENCE_S", 0.01)
    expression, wanted = matrix
    assert b"".join(taken(LocalJobs(2, Cache(None), pool), jobs_of(expression), files)) == wanted


@dataclass(frozen=True, eq=False)
class Tasks:
    """A job of given tasks."""

    tasks: tuple
    key: str = "cd" * 32
    name: str = "w"
    sources: tuple = ()
    shared: object = None
    counts: bool = True

    def pieces(self, files, backend_of, shared):
        yield from self.tasks


def test_few_pieces_are_in_flight(files):
    """A reader that dawdles holds the workers back: at most two pieces a worker are computed ahead, of any job."""
    lock, started = threading.Lock(), []

    def task():
        with lock:
            started.append(1)
        return memoryview(b"x")

    with LocalJobs(3, Cache(None)) as executor:
        results = executor.results([Tasks((task,) * 5) for _ in range(20)], files, {})
        count = 0
        for _ in range(3):
            for _piece in next(results):
                count += 1
                time.sleep(0.01)
                assert len(started) <= count + 6
        assert len(started) > count, "pieces of the next job are begun before it is asked for"
        results.close()
        time.sleep(0.02)
        assert len(started) <= count + 6


def test_an_error_names_the_weight(source, files):
    expression = Stored(source(np.array([1e300]), "f64"), Dense("f32"))
    with LocalJobs(2, Cache(None)) as executor, pytest.raises(QuantizeError, match=r"^quantize: model\.norm\.weight: "):
        taken(executor, jobs_of(expression), files)


def test_after_an_error_nothing_more_is_computed(files, tmp_path):
    done = []

    def fail():
        raise QuantizeError("no")

    others = (partial(done.append, 0),) * 50
    with LocalJobs(2, Cache(tmp_path)) as executor, pytest.raises(QuantizeError, match="quantize: w: no"):
        taken(executor, [Tasks((fail, *others)), Tasks(others)], files)
    assert len(done) < 8
    assert not list(tmp_path.rglob("??/*")) and not list(tmp_path.glob("staged-*"))


def test_what_jobs_share_is_made_for_those_that_are_to_be_done(files, tmp_path):
    made = []

    class Sharing(Tasks):
        def pieces(self, files, backend_of, shared):
            yield lambda: memoryview(shared)

    jobs = [Sharing((), key=f"{n:064x}", shared=lambda: made.append(0) or b"shared") for n in range(2)]
    with LocalJobs(2, Cache(tmp_path)) as executor:
        assert taken(executor, jobs[:1], files) == [b"shared"] and len(made) == 1
        assert taken(executor, jobs, files) == [b"shared"] * 2 and len(made) == 2
        assert taken(executor, jobs, files) == [b"shared"] * 2 and len(made) == 2


def test_no_result_is_kept_of_a_source_that_changed(source, files, tmp_path):
    expression = Stored(source(np.arange(6.0)), Dense("f32"))
    cache = Cache(tmp_path / "cache")
    files.digest(expression.base.path)
    with LocalJobs(1, cache) as executor:
        result = next(executor.results(jobs_of(expression), files, BACKENDS))
        next(result)
        with open(expression.base.path, "r+b") as file:
            file.write(b"\0")
        with pytest.raises(IngestError, match="changed while the build read it"):
            next(result)
    assert not cache.has("ab" * 32)
