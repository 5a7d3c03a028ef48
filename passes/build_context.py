"""What a build shares with the builds inside it: those of the gate's reference, and of what `min_tok_s` times.

All read the same descriptors, so a file that is renamed over meanwhile is not another model to one of them; and no
setting of the build is forgotten by what it does within.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.passes.build_arguments import check_workers
from pyc.passes.jobs.job import JobExecutor
from pyc.passes.jobs.registry import executor_of


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The files that a build has open, its cache, who does its jobs, and how many threads compute beside."""

    files: SourceFiles
    cache: Cache
    executor: JobExecutor
    workers: int


@contextmanager
def build_context(cache: Cache, workers: int | None = None, jobs: str | None = None) -> Iterator[BuildContext]:
    """Yield what a build with these arguments has; the files are open, and jobs are done, as long as the context lasts.

    Raises RecipeError, and with `jobs` MissingExtraError and ClusterError.
    """
    count = check_workers(workers)
    with executor_of(jobs, count if jobs is None else workers, cache) as executor, SourceFiles() as files:
        yield BuildContext(files, cache, executor, count)
