"""Calibrates as a recipe asks, into a folder that lasts as long as a build reads it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.files.work_folder import sweep, work_folder
from pyc.compiler.ir import Module
from pyc.compiler.recipe.types import Recipe
from pyc.passes.calibration.calibrate import calibrate, weights_to_round
from pyc.passes.calibration.calibration_text import calibration_sources, calibration_windows
from pyc.passes.calibration.imported_importance import imported_importance
from pyc.passes.jobs.job import JobExecutor

logger = logging.getLogger(__name__)

Report = Callable[[Literal["calibrate"], int, int], None]
"""Is told the stage of a build, and weights that are done of all."""


def warn_of_unread_text(recipe: Recipe) -> None:
    """Log a warning where the recipe has a text to calibrate by, and nothing that reads one."""
    given = recipe.quantize.calibration
    if (given.text is not None or given.generate is not None) and not recipe.quantize.reads_text():
        logger.warning(
            "quantize.calibration: its text changes nothing, as quantize.algorithm is %s; remove the key, or choose an "
            "algorithm that reads it, such as gptq, for a scheme of codes",
            recipe.quantize.algorithm,
        )


@contextlib.contextmanager
def calibration(
    recipe: Recipe,
    files: SourceFiles,
    cache: Cache,
    report: Report,
    executor: JobExecutor | None = None,
    workers: int | None = None,
) -> Iterator[Callable[[Module], Module]]:
    """Yield what calibrates a module as the recipe asks; the codes that it chooses last as long as the context.

    The module names what was read for that, and what schemes are chosen by. `report` is told how many weights are done
    of all; `executor` rounds them, and `workers` threads compute their inputs.
    """
    algorithm, migration = recipe.quantize.algorithm, recipe.quantize.migration
    read = calibration_sources(recipe)
    if not recipe.quantize.calibrates():
        yield lambda module: replace(module, sources=(*module.sources, *read))
        return
    sweep()
    with work_folder("calibration") as folder, files.owning(folder):

        def calibrated(module: Module) -> Module:
            importance = imported_importance(recipe, module, files)
            total, done = weights_to_round(module, algorithm, importance), 0

            def advance(count: int) -> None:
                nonlocal done
                done += count
                report("calibrate", done, total)

            windows = calibration_windows(recipe, module, files, cache) if recipe.quantize.reads_text() else None
            report("calibrate", 0, total)
            made = calibrate(
                module, windows, files, cache, folder, advance, algorithm, migration, importance, executor, workers
            )
            return replace(made, sources=(*made.sources, *read))

        yield calibrated
