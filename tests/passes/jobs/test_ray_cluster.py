"""passes/jobs on a Ray cluster of this machine: the bytes of threads, whoever is lost meanwhile; what is refused."""

import contextlib
import os
import random
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from built_models import recipe_for
from ray_clusters import kill, ray_cluster  # noqa: F401  # a fixture
from traced_jobs import TracedJob

from pyc.compiler.digest import expression_digest
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import Dense
from pyc.compiler.storage import stored_tensor
from pyc.compiler.weights import Stored
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.calibration.calibrate import calibrate
from pyc.passes.driver.build import build
from pyc.passes.interpretation.interpret_text import Windows
from pyc.passes.jobs import job as jobs_module
from pyc.passes.jobs.job import weight_jobs
from pyc.passes.pipeline import pipeline
from pyc.runtime.errors import ClusterError, IngestError, QuantizeError

pytestmark = pytest.mark.slow
SHAPE = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512}


@pytest.fixture(autouse=True)
def every_job_is_sent(monkeypatch, ray_cluster):  # noqa: F811
    """However little it reads, so that a tiny model is many jobs of the cluster."""
    ray_jobs = pytest.importorskip("pyc.passes.jobs.ray_cluster")
    monkeypatch.setattr(ray_jobs, "LEAST_BYTES", -1)
    monkeypatch.setattr(jobs_module, "JOB_WEIGHTS", 1 << 15)


@pytest.fixture(scope="module")
def connection(ray_cluster):  # noqa: F811
    """A connection for all tests: making one takes seconds."""
    from pyc.passes.jobs.ray_connection import RayConnection

    made = RayConnection(ray_cluster.address)
    made.open()
    yield made
    made.close()


@pytest.fixture
def cluster_jobs(ray_cluster, connection, tmp_path, monkeypatch):  # noqa: F811
    """`cluster_jobs()`: an executor on the cluster, connected."""
    from pyc.passes.jobs.ray_cluster import RayJobs

    monkeypatch.setattr(connection, "open", lambda: None)
    monkeypatch.setattr(connection, "close", lambda: None)
    monkeypatch.setattr("pyc.passes.jobs.ray_cluster.RayConnection", lambda address: connection)
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(RayJobs(ray_cluster.address, None, Cache(tmp_path / "shared")))


def traced(folder, count, **given):
    folder.mkdir(exist_ok=True)
    return [TracedJob(f"{index:064x}", f"job{index}", str(folder), **given) for index in range(count)]


def results(executor, jobs):
    with SourceFiles() as files:
        return [b"".join(map(bytes, pieces)) for pieces in executor.results(jobs, files, {})]


def begun(folder, name):
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def remote(monkeypatch):
    """Jobs without sources are sent, too."""
    from pyc.passes.jobs.ray_cluster import RayJobs

    monkeypatch.setattr(RayJobs, "_is_local", lambda self, job, files: False)


def test_a_lost_worker_costs_its_job_only(cluster_jobs, remote, tmp_path):
    folder = tmp_path / "trace"
    jobs = traced(folder, 6)
    (folder / "hold").touch()

    def lose_one():
        while not begun(folder, "job0"):
            time.sleep(0.01)
        kill(int(begun(folder, "job0")[0]))
        (folder / "hold").unlink()

    thief = threading.Thread(target=lose_one)
    thief.start()
    executor = cluster_jobs()
    assert results(executor, jobs) == [job.name.encode() for job in jobs]
    thief.join()
    assert [len(begun(folder, job.name)) for job in jobs] == [2, 1, 1, 1, 1, 1]
    assert results(executor, jobs) == [job.name.encode() for job in jobs], "from the cache"
    assert [len(begun(folder, job.name)) for job in jobs] == [2, 1, 1, 1, 1, 1]
    assert not list((tmp_path / "shared").glob("staged-*")) or Cache(tmp_path / "shared").trim() is None


def test_a_job_that_ends_every_worker_is_an_error(cluster_jobs, remote, tmp_path):
    jobs = traced(tmp_path / "trace", 1, ends=100)
    with pytest.raises(ClusterError, match="job0: 4 workers ended at this job"):
        results(cluster_jobs(), jobs)
    assert len(begun(tmp_path / "trace", "job0")) == 4


@pytest.mark.parametrize("what", ["job", "hash"])
def test_a_cluster_that_has_lost_all_workers_is_an_error(cluster_jobs, remote, connection, tmp_path, monkeypatch, what):
    """A job that no worker begins, for longer than one waits, on a cluster that says it has no processor."""
    from pyc.passes.jobs import ray_cluster as module

    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    monkeypatch.setattr(module, "POLL_S", 0.2)
    monkeypatch.setattr(connection, "processors", lambda: 0)
    monkeypatch.setattr(connection, "finished", lambda references, timeout_s: time.sleep(timeout_s) or [])
    (tmp_path / "big").write_bytes(bytes(2 << 20))
    jobs, executor = traced(tmp_path / "trace", 1), cluster_jobs()
    with SourceFiles() as files, pytest.raises(ClusterError, match="has had no worker for 0 s: all were lost"):
        executor.digests([str(tmp_path / "big")], files) if what == "hash" else results(executor, jobs)


def test_what_jobs_share_is_sent_once(cluster_jobs, remote, tmp_path):
    made = []
    jobs = traced(tmp_path / "trace", 3, shared=lambda: made.append(0) or [0, 1, 2])
    assert results(cluster_jobs(), jobs) == [f"{job.name} [0, 1, 2]".encode() for job in jobs]
    assert made == [0]
    assert results(cluster_jobs(), jobs) and made == [0], "nothing is made for what is there"


def test_a_result_that_was_lost_is_computed_again(cluster_jobs, remote, tmp_path, monkeypatch):
    from pyc.passes.jobs import ray_cluster as module

    monkeypatch.setattr(module, "VISIBLE_S", 0.1)
    folder = tmp_path / "trace"
    jobs = traced(folder, 2)
    executor, taken = cluster_jobs(), []
    with SourceFiles() as files:
        for pieces in executor.results(jobs, files, {}):
            taken.append(b"".join(map(bytes, pieces)))
            while not begun(folder, "job1"):
                time.sleep(0.01)
            time.sleep(0.2)
            shutil.rmtree(tmp_path / "shared" / "entries" / "00", ignore_errors=True)
            executor._store.put(executor._site.probe, b"")
    assert taken == [b"job0", b"job1"]
    assert len(begun(folder, "job1")) == 2


def test_a_cache_that_is_not_shared_is_an_error(cluster_jobs, remote, tmp_path):
    executor = cluster_jobs()
    executor._store.remove(executor._site.probe)
    with pytest.raises(ClusterError, match=r"does not see what the build writes to .*; every machine has to see"):
        results(executor, traced(tmp_path / "trace", 1))


def test_other_versions_are_refused(cluster_jobs, remote, tmp_path, monkeypatch):
    from pyc.passes.jobs import ray_cluster as module

    monkeypatch.setattr(module, "versions", lambda: "pyc 9.9")
    with pytest.raises(ClusterError, match=r"has pyc 0\..*, and the build pyc 9\.9; results could differ"):
        results(cluster_jobs(), traced(tmp_path / "trace", 1))


def weight(source, values, files, executor, dtype="f32"):
    expression = Stored(source(values, dtype), Dense("f32"))
    digests = executor.digests([expression.base.path], files)
    digest = expression_digest(expression, digests)
    return expression.base.path, weight_jobs("w", expression, stored_tensor(expression), "onnx", digest)


def test_weights_are_those_that_were_hashed(cluster_jobs, source):
    values = np.random.default_rng(0).normal(size=300_000).astype(np.float32)
    with SourceFiles() as files:
        executor = cluster_jobs()
        path, jobs = weight(source, values, files, executor)
        got = b"".join(bytes(piece) for pieces in executor.results(jobs, files, {}) for piece in pieces)
        assert len(jobs) == 10 and got == values.tobytes()
        path, jobs = weight(source, values + 1, files, executor)
        with open(path, "r+b") as file:  # as another machine has another file there
            file.seek(500_000)
            file.write(b"\0\0\0\0")
        with pytest.raises(IngestError, match="the bytes from 0 on are not those that the build hashed"):
            list(map(list, executor.results(jobs, files, {})))


def test_a_file_that_only_this_machine_has(cluster_jobs, source, tmp_path):
    with SourceFiles() as files:
        path, jobs = weight(source, np.zeros(10), files, executor := cluster_jobs())
        executor._site = type(executor._site)(executor._site.build[::-1], *[
            getattr(executor._site, name) for name in ("place", "probe", "folder", "versions")
        ])
        Path(path).unlink()
        with pytest.raises(IngestError, match="No such file or directory; every machine has to see the files"):
            list(map(list, executor.results(jobs, files, {})))


def test_an_error_of_a_job_is_that_of_threads(cluster_jobs, source):
    with SourceFiles() as files:
        _, jobs = weight(source, np.array([1e300]), files, executor := cluster_jobs(), "f64")
        with pytest.raises(QuantizeError, match=r"^quantize: w: .*does not fit f32"):
            list(map(list, executor.results(jobs, files, {})))


def lose_workers(cluster, count, seed, is_over):
    """Kill `count` workers, any, at any moment, until the build is over."""
    draw = random.Random(seed)
    while count and not is_over.wait(draw.uniform(0.05, 0.4)):
        if workers := cluster.workers(at_work=True):
            kill(draw.choice(workers))
            count -= 1


def test_codes_of_gptq_are_those_of_threads(cluster_jobs, tiny_checkpoint, tmp_path, monkeypatch):
    """Matrices are rounded on the cluster; their codes lie in a file of this machine, and are packed here."""
    monkeypatch.setattr("pyc.passes.calibration.calibrate.ROUND_ROWS", 32)
    path = tiny_checkpoint("llama", hidden_size=64, intermediate_size=96, num_hidden_layers=1)
    recipe = {"model": str(path), "quantize": {"scheme": "int4-g32"}}
    module = run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe_from(recipe), ()))
    ids = np.random.default_rng(0).integers(3, 90, (4, 16)).astype(np.int32)
    made = {}
    with SourceFiles() as files:
        for name, executor in {"threads": None, "cluster": cluster_jobs()}.items():
            (tmp_path / name).mkdir()
            calibrate(
                module, Windows(ids, "digest"), files, Cache(tmp_path / f"{name} cache"), tmp_path / name,
                lambda count: None, "gptq", executor=executor,
            )  # fmt: skip
            made[name] = (tmp_path / name / "codes").read_bytes()
        assert executor._done > 6
    assert made["cluster"] == made["threads"]


@pytest.mark.parametrize("seed", range(int(os.environ.get("PYC_LOST_WORKERS", "1"))))
def test_a_build_whose_workers_are_lost_has_the_bytes_of_threads(
    ray_cluster,  # noqa: F811
    cluster_jobs,
    tiny_checkpoint,
    tiny_adapter,
    tmp_path,
    monkeypatch,
    seed,
):
    checkpoint = tiny_checkpoint("llama", **SHAPE)
    adapter = tiny_adapter(checkpoint, "lora", r=4, target_modules=["q_proj", "down_proj"])
    recipe = {
        **recipe_for(checkpoint, quantize={"scheme": ("int4-g32", "nvfp4", "fp8-tensor")[seed % 3]}),
        "adapters": [{"path": str(adapter)}],
    }
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    wanted = build(recipe, output=tmp_path / "threads.pyca", workers=2)
    monkeypatch.setenv("PYC_SHARED_CACHE", str(tmp_path / "shared"))
    is_over = threading.Event()
    thief = threading.Thread(target=lose_workers, args=(ray_cluster, 3, seed, is_over))
    thief.start()
    try:
        got = build(recipe, output=tmp_path / "cluster.pyca", jobs=ray_cluster.address)
    finally:
        is_over.set()
        thief.join()
    assert got.sha256 == wanted.sha256
    assert got.cache_misses > 20
