"""Refuse early: what can be known to be wrong before anything is measured, calibrated or hashed, is said there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyc.backends.protocol import Backend
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.recipe.types import Recipe
from pyc.passes.calibration.calibration_text import calibration_windows
from pyc.passes.calibration.imported_importance import imported_importance
from pyc.passes.calibration.matrix_algorithms import calibrated, scaled
from pyc.passes.calibration.scale_channels import as_if_scaled
from pyc.passes.driver.build_output import with_sources
from pyc.passes.driver.emit_artifact import ProgramsFrom
from pyc.passes.driver.emit_programs import check_parts, require_compilers
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.lower import lower
from pyc.passes.mixed_precision.scheme_problem import Ingested, guessed_recipe, problem
from pyc.runtime.host.output_file import OutputFile

if TYPE_CHECKING:
    from pyc.passes.driver.quality_gate import Gate


def refuse_early(
    recipe: Recipe,
    files: SourceFiles,
    cache: Cache,
    backends: Mapping[str, Backend],
    output: OutputFile,
    programs_from: ProgramsFrom | None,
) -> None:
    """Raise, before anything is measured or calibrated, what can be known to be wrong behind it, from headers alone.

    Programs are asked for where the graph is known: schemes that are chosen make another.
    """
    is_chosen = recipe.quantize.goal() is not None
    guess = recipe
    if is_chosen:
        ingested = ingest_recipe(recipe, files, cache, backends)
        guess = guessed_recipe(ingested)
        if programs_from:
            _require_compilers_to_time(ingested)
    lowered = lower_recipe(guess, files, cache, backends)
    target = with_sources(output, lowered.common)
    target.check()
    gate_of(recipe, lowered.common, files, target)
    for wanted in recipe.targets:
        backends[wanted.backend].fastest_first(wanted.isa)
    check_parts(lowered, recipe)
    imported_importance(recipe, lowered.common, files)
    if recipe.quantize.reads_text():
        calibration_windows(recipe, lowered.common, files, cache)
    if programs_from and not is_chosen:
        method, names = scaled(calibrated(lowered.common, recipe.quantize.algorithm))
        built = lower(as_if_scaled(lowered.common, method, names), backends) if method is not None else lowered
        programs_from(built, recipe, cache)


def gate_of(recipe: Recipe, module: Module, files: SourceFiles, target: OutputFile) -> Gate | None:
    """Return the recipe's gate, with its text read. What runs and measures a model is imported for one only."""
    if recipe.quality is None:
        return None
    from pyc.passes.driver.quality_gate import read_gate

    gate = read_gate(recipe, module, files, target)
    if gate is not None:
        gate.report.check()
    return gate


def require_gates_compilers(recipe: Recipe) -> None:
    """Raise MissingExtraError where a recipe has a gate that compiles its reference, and compilers are missing: of a
    build that takes its programs, which needs them for nothing else."""
    if recipe.quality is not None and recipe.quality.reference == "checkpoint":
        require_compilers(
            "quality: the gate compares the artifact with its checkpoint, which is compiled for that",
            "write `reference: none`, by which max_ppl alone is measured, or take the gate out and run `pyc eval` on a "
            "machine that has them",
        )


def _require_compilers_to_time(ingested: Ingested) -> None:
    """Raise MissingExtraError where choices would be compiled to be timed, and compilers are missing."""
    found = problem(ingested) if ingested.recipe.quantize.min_tok_s is not None else None
    if found is not None and found.leaves_a_choice():
        require_compilers(
            "quantize.min_tok_s: choices are compiled to be timed",
            "take another goal, or the schemes that were chosen on a machine that has them (`pyc inspect ARTIFACT "
            "--recipe`)",
        )
