"""Checkpoints, adapters and arrays as sources for the tests of passes/, and who does their jobs."""

import pytest
from compiled_objects import compiled_once, suite_cache
from tiny_checkpoints import tiny_adapter, tiny_checkpoint, tiny_copy
from weight_files import source

from pyc.passes.calibration import calibrate
from pyc.passes.jobs import registry
from pyc.passes.jobs.local import LocalJobs

__all__ = ["compiled_once", "source", "suite_cache", "tiny_adapter", "tiny_checkpoint", "tiny_copy"]


@pytest.fixture
def executors(monkeypatch):
    """With how many threads each executor of jobs was made."""
    made: list[int] = []

    class Counted(LocalJobs):
        def __init__(self, workers, *rest):
            made.append(workers)
            super().__init__(workers, *rest)

    for module in (registry, calibrate):
        monkeypatch.setattr(module, "LocalJobs", Counted)
    return made
