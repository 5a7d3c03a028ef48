"""passes/jobs/registry.py: which cluster is meant, and one line for each that cannot be had."""

import sys

import pytest

from pyc.cli import main
from pyc.compiler.files.cache import Cache
from pyc.passes.jobs.local import LocalJobs
from pyc.passes.jobs.registry import check_jobs, executor_of
from pyc.runtime.errors import ClusterError, MissingExtraError, RecipeError


@pytest.mark.parametrize("jobs", ["dask", "ray:", "ray://", "RAY", "", 3, ["ray"]])
def test_what_is_no_cluster_is_refused(jobs):
    with pytest.raises(RecipeError, match=r'^jobs: got .*, expected "ray" or "ray://HOST:PORT"$'):
        check_jobs(jobs, use_cache=True)


def test_a_cluster_needs_a_cache():
    check_jobs(None, use_cache=False)
    with pytest.raises(RecipeError, match="leave --no-cache out"):
        check_jobs("ray", use_cache=False)


def test_threads_are_what_is_meant_without_a_cluster():
    with executor_of(None, 2, Cache(None)) as executor:
        assert isinstance(executor, LocalJobs)


@pytest.mark.parametrize("name", ["ray", "grpc"])
def test_ray_that_is_not_installed_is_named(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"needs (ray|grpc), .*'\.\[ray\]'"):
        executor_of("ray", None, Cache(tmp_path))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://127.0.0.1:1", "no Ray cluster at ray://127.0.0.1:1: Connection refused; start one"),
        ("ray://127.0.0.1", "got ray://127.0.0.1, expected ray://HOST:PORT"),
        ("ray://127.0.0.1:99999", "no Ray cluster at ray://127.0.0.1:99999: "),
    ],
)
def test_a_cluster_that_is_not_there(address, message, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ClusterError, match=f"^jobs: {message}"), executor_of(address, None, Cache(tmp_path)):
        pass
    assert not list(tmp_path.rglob("??/*"))


def test_the_address_may_be_rays_own(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:2")
    with pytest.raises(ClusterError, match=r"ray://127\.0\.0\.1:2"), executor_of("ray", None, Cache(tmp_path)):
        pass


def test_a_cluster_without_a_cache_is_an_error():
    pytest.importorskip("ray")
    with pytest.raises(ClusterError, match="there is no cache for results: set PYC_SHARED_CACHE"):
        executor_of("ray", None, Cache(None))


def test_check_does_not_ask_a_cluster(capsys):
    assert main(["build", "model.yaml", "--check", "--jobs", "ray"]) == 2
    assert "--jobs" in capsys.readouterr().err
