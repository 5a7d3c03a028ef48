"""How commands that run an artifact start: hashing begins before anything slow is imported."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyc.runtime.reader import Artifact


@contextmanager
def open_ahead(path: Path) -> Iterator["Artifact"]:
    """Yields the artifact, open, with its tensors being verified in the background: hand it to `load` inside.

    Raises ArtifactError.
    """
    # No command that runs an artifact multiplies with numpy, and idle threads of its BLAS would keep the cores busy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What is made while starting lives as long as the process; looking for garbage in it takes 16 ms.
    collects = gc.isenabled()
    gc.disable()
    try:
        from pyc.runtime.reader import open_artifact

        with open_artifact(path) as artifact:
            artifact.verify_ahead()
            yield artifact
    finally:
        if collects:
            gc.enable()
