"""Check whether an artifact is what a build would write now, from its header, the sources and the recipe.

What a build would record is made as the build makes it, short of reading weights: no program is compiled and no weight
is evaluated. Of a recipe with a goal the schemes that its build chose are taken from the artifact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from pyc.backends.protocol import Backend
from pyc.compiler.awaited import Workers
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.types import Override, Recipe
from pyc.models.adapters import Adapter
from pyc.passes.adapters.check_adapters import checking_effects
from pyc.passes.adapters.compute_prefix import prefix_records
from pyc.passes.calibration.calibrate import calibration_records
from pyc.passes.calibration.calibration_text import calibration_sources, calibration_windows
from pyc.passes.calibration.imported_importance import imported_importance
from pyc.passes.comparison.changes import Change
from pyc.passes.comparison.compare_artifacts import provenance_changes, struct_changes
from pyc.passes.driver.build_arguments import check_workers
from pyc.passes.driver.conventions import other_conventions
from pyc.passes.driver.emit_artifact import provenance_of
from pyc.passes.driver.emit_programs import check_parts
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.lower import backends_of, lower
from pyc.passes.pipeline import pipeline
from pyc.runtime.artifact.format import Generation, ModelInfo, Program, Provenance
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import MissingArtifactError, RecipeError


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Whether an artifact is what its recipe builds now: `groups` has what is different, in the artifact (before) and
    in a build (after). Where the artifact is not there, `exists` is false and nothing is compared."""

    artifact: str
    is_up_to_date: bool
    exists: bool
    groups: Mapping[str, tuple[Change, ...]]


def check_artifact(recipe: Recipe, path: Path, *, workers: int | None = None) -> UpToDate:
    """Return whether the artifact at `path` is what `recipe` builds now; `workers` threads hash the sources.

    The artifact's header is read and verified, and nothing else of it. Raises ArtifactError for a file that is no
    intact artifact, and what a build raises for what it would refuse: RecipeError, IngestError, AdapterError,
    QuantizeError and LowerError.
    """
    try:
        with open_artifact(path, mode="pread") as opened:
            header = opened.header
    except MissingArtifactError:
        header = None
    chosen = recipe if header is None else with_chosen_schemes(recipe, header.provenance.recipe)
    info, generation, made_of = _expected(chosen, check_workers(workers))
    if header is None:
        return UpToDate(str(path), is_up_to_date=False, exists=False, groups={})
    groups = {
        "model": struct_changes(header.model, info),
        **provenance_changes(header.provenance, made_of),
        "generation": struct_changes(header.generation, generation),
        "programs": _convention_changes(header.programs),
    }
    same = (header.model, header.provenance, header.generation) == (info, made_of, generation)
    same = same and not groups["programs"]
    return UpToDate(str(path), same, True, {name: changes for name, changes in groups.items() if changes})


def _convention_changes(programs: Sequence[Program]) -> tuple[Change, ...]:
    """The programs that are called in another way than those of a build now: this pyc runs none of them."""
    return tuple(
        Change(f"{other.program.backend} {other.program.isa} {other.program.arch}", other.recorded, other.ours)
        for other in other_conventions(programs)
    )


def with_chosen_schemes(recipe: Recipe, recorded: str) -> Recipe:
    """Return a recipe with a goal with the schemes that its build chose, out of the recipe that an artifact records.

    They stand behind the recipe's own overrides. Any other recipe, and one whose overrides are not those that the
    record begins with, is returned as it is.
    """
    if recipe.quantize.goal() is None:
        return recipe
    own = recipe.quantize.overrides
    overrides = _overrides(recorded)
    if overrides[: len(own)] != own:
        return recipe
    return msgspec.structs.replace(recipe, quantize=msgspec.structs.replace(recipe.quantize, overrides=overrides))


def _overrides(recorded: str) -> tuple[Override, ...]:
    """The overrides of a recorded recipe; none of one that this version does not read."""
    try:
        return recipe_from(msgspec.json.decode(recorded, type=dict[str, object])).quantize.overrides
    except (RecipeError, ValueError, RecursionError):
        return ()


def _expected(recipe: Recipe, workers: int) -> tuple[ModelInfo, Generation, Provenance]:
    """What a build would record."""
    cache = Cache(None)
    backends: dict[str, Backend] = backends_of(recipe, cache)
    with SourceFiles() as files:
        ingested = ingest_recipe(recipe, files, cache, backends)
        checking = checking_effects(ingested.adapters, files)
        checking("ingest", ingested.module)
        module = run_passes(ingested.module, pipeline(recipe, ingested.adapters), observe=checking)
        lowered = lower(_recorded(module, recipe, ingested.adapters, files), backends)
        check_parts(lowered, recipe)
        with Workers(workers, "pyc-hash") as pool:
            list(pool.map(files.digest, dict.fromkeys(source.path for source in lowered.common.sources)))
        made_of = provenance_of(lowered, recipe, files)
        files.check()
    return module.info, module.generation, made_of


def _recorded(
    module: Module, recipe: Recipe, adapters: tuple[tuple[Adapter, float], ...], files: SourceFiles
) -> Module:
    """The common module with the records and sources of what a build does to it by reading weights."""
    records = () if module.prefix is None else prefix_records(adapters)
    windows = calibration_windows(recipe, module, files) if recipe.quantize.reads_text() else None
    if recipe.quantize.calibrates():
        importance = imported_importance(recipe, module, files)
        quantize = recipe.quantize
        records += calibration_records(module, windows, quantize.algorithm, quantize.migration, importance)
    sources = (*module.sources, *calibration_sources(recipe))
    return replace(module, passes=(*module.passes, *records), sources=sources)
