"""Who does a build's jobs: threads of this process, or a Ray cluster.

"ray" is the cluster whose client server listens on this machine, or that $RAY_ADDRESS names as ray://HOST:PORT;
"ray://HOST:PORT" any other. Results go through the build cache, or the folder or bucket that $PYC_SHARED_CACHE names:
every machine has to see it.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from pyc.compiler.files.cache import Cache
from pyc.passes.jobs.job import JobExecutor
from pyc.passes.jobs.local import LocalJobs
from pyc.runtime.arguments import shown
from pyc.runtime.errors import RecipeError

SCHEME = "ray://"
HERE = "ray://127.0.0.1:10001"
"""Where `ray start --head` listens for clients."""


def check_jobs(jobs: object, *, use_cache: bool) -> None:
    """Raise RecipeError unless `jobs` is None, or names a cluster, whose results have a cache to go through."""
    if jobs is None:
        return
    if not isinstance(jobs, str) or (jobs != "ray" and not (jobs.startswith(SCHEME) and len(jobs) > len(SCHEME))):
        raise RecipeError(f'jobs: got {shown(jobs)}, expected "ray" or "ray://HOST:PORT"')
    if not use_cache:
        raise RecipeError("jobs: results of a cluster go through the build cache; leave --no-cache out")


def executor_of(jobs: str | None, workers: int | None, cache: Cache) -> AbstractContextManager[JobExecutor]:
    """Return what does the jobs of a build: `workers` threads, or so many at once of the cluster `jobs` (None: all).

    Raises MissingExtraError without Ray. Entering it connects to the cluster, and raises ClusterError.
    """
    if jobs is None:
        assert workers is not None
        return LocalJobs(workers, cache)
    from pyc.passes.jobs.ray_cluster import RayJobs

    return RayJobs(_address(jobs), workers, cache, os.environ.get("PYC_SHARED_CACHE", ""))


def _address(jobs: str) -> str:
    if jobs != "ray":
        return jobs
    named = os.environ.get("RAY_ADDRESS", "")
    return named if named.startswith(SCHEME) else HERE
