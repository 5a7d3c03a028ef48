"""Builds of programs alone: a recipe to an artifact of compiled code without weights (ADR 51).

Of a checkpoint's weights the headers are read, so a shape is enough.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyc.compiler.files.artifact import ArtifactSummary, ArtifactWriter
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import Observer
from pyc.compiler.recipe.types import Recipe
from pyc.passes.build_events import BuildEvent, log_note
from pyc.passes.calibration.rounding import scaling_algorithms
from pyc.passes.driver.build import (
    BuildResult,
    build_cache,
    parse,
    result_of,
)
from pyc.passes.driver.build_arguments import check_flags, check_path, check_progress
from pyc.passes.driver.build_output import output_file, with_sources
from pyc.passes.driver.dump_ir import IrDump
from pyc.passes.driver.emit_artifact import features_of, prefix_shape, provenance_of
from pyc.passes.driver.emit_programs import ProgramCompiler, buckets_of, compilers_of
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.driver.module_identity import identity_text, text_blob
from pyc.passes.lower import Lowered, backends_of
from pyc.runtime.artifact.format import KV_PREFIX, PROGRAM_ONLY, Generation, Program
from pyc.runtime.artifact.trust.key_sources import choose_key
from pyc.runtime.artifact.trust.keys import SigningKey
from pyc.runtime.errors import RecipeError
from pyc.runtime.host.output_file import OutputFile


def build_programs(
    recipe: str | os.PathLike[str] | Mapping[str, object] | Recipe,
    *,
    output: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    use_cache: bool = True,
    force: bool = False,
    download: bool = False,
    key: str | os.PathLike[str] | None = None,
    dump_ir: str | os.PathLike[str] | None = None,
    progress: Callable[[BuildEvent], None] | None = None,
) -> BuildResult:
    """Build the programs of a recipe that names its schemes. Its gate and calibration are matters of weights.

    Arguments are those of `build`. Raises RecipeError for a recipe that has schemes chosen by measurement, and the
    errors of a build.
    """
    started_s = time.perf_counter()
    check_progress(progress)
    for name, path in {"output": output, "key": key, "dump_ir": dump_ir}.items():
        check_path(path, name)
    check_flags(use_cache=use_cache, force=force, download=download)
    compilers_of(())  # before anything is fetched
    report = progress or log_note
    recipe = parse(recipe, overrides, download, report)
    _refuse_chosen_by_weights(recipe)
    target = output_file(recipe, output, force=force)
    replace(target, force=True).check()
    cache = build_cache(use_cache)
    observe: Observer = (lambda name, module: None) if dump_ir is None else IrDump(dump_ir)
    backends = backends_of(recipe, cache)
    compilers_of(backends.values())
    report(BuildEvent("ingest", 0, 0))
    with SourceFiles() as files:
        lowered = lower_recipe(recipe, files, cache, backends, observe)
        target = with_sources(target, lowered.common)
        target.check()
        chosen = choose_key(recipe.artifact.key, key)
        if chosen.is_new:
            report(BuildEvent("ingest", 0, 0, chosen.announcement()))
        if chosen.file is not None:
            target = replace(target, sources=(*target.sources, (str(chosen.file), "the signing key")))
            target.check()
        report(BuildEvent("compile", 0, 0))
        summary = _emit(lowered, recipe, target, chosen.key, files, cache)
    cache.trim()
    report(BuildEvent("done", 0, 0))
    result = result_of(summary, lowered.weights(), cache, time.perf_counter() - started_s)
    return replace(result, scheme_bytes=())


def _refuse_chosen_by_weights(recipe: Recipe) -> None:
    """Raise RecipeError for a recipe whose programs depend on values of weights."""
    goal = recipe.quantize.goal()
    remedy = "or take the artifact of a whole build as the program"
    if goal is not None:
        raise RecipeError(
            f"quantize.{goal[0]}: schemes would be chosen by weights, and programs are built without; write scheme and "
            f"overrides, {remedy}"
        )
    for algorithm in scaling_algorithms(recipe.quantize.algorithms()):
        raise RecipeError(
            f"quantize.algorithm: {algorithm} scales channels by weights, which is another graph, and programs are "
            f"built without weights; take rtn, or an algorithm that only chooses codes, such as gptq, {remedy}"
        )


def _emit(
    lowered: Lowered,
    recipe: Recipe,
    output: OutputFile,
    key: SigningKey | None,
    files: SourceFiles,
    cache: Cache,
) -> ArtifactSummary:
    """Write the tensor table, what each backend's programs were compiled from, and the programs."""
    buckets, weights = buckets_of(recipe, lowered.common.info), lowered.weights()
    programs: list[Program] = []
    with (
        ArtifactWriter(output.path, recipe.artifact.codec, allowed=output.check) as writer,
        ProgramCompiler(lowered, recipe, cache) as compiler,
    ):
        if lowered.common.prefix is not None:
            writer.describe_tensor(KV_PREFIX, "f32", prefix_shape(lowered.common))
        for name, weight in weights.items():
            writer.describe_tensor(name, weight.tensor.dtype, weight.tensor.shape)
        for part in lowered.parts:
            writer.add_blob(text_blob(part.backend.name), identity_text(part, buckets).encode())
        blobs: dict[str, bytes] = {}
        for program, libraries in compiler.programs():
            programs.append(program)
            blobs.update(libraries)
        for name, data in blobs.items():
            writer.add_blob(name, data)
        files.check()
        return writer.finish(
            model=lowered.common.info,
            generation=Generation(),
            programs=tuple(programs),
            provenance=provenance_of(lowered, recipe, files, compiler.tools(), has_weights=False),
            signing_key=key,
            requires=(*features_of(lowered.common), PROGRAM_ONLY),
        )
