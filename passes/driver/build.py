"""Builds: a recipe to a signed artifact, and how far that gets without reading weights."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyc.backends.protocol import Backend
from pyc.compiler.files.artifact import ArtifactSummary, CodecUse
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import Observer
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.types import Recipe
from pyc.passes.build_context import BuildContext
from pyc.passes.build_events import BuildEvent, log_note
from pyc.passes.driver.build_arguments import (
    check_flags,
    check_overrides,
    check_path,
    check_progress,
    check_source,
    check_workers,
)
from pyc.passes.driver.build_calibration import calibration, warn_of_unread_text
from pyc.passes.driver.build_output import output_file, with_key, with_sources
from pyc.passes.driver.build_source import fetch, read_source
from pyc.passes.driver.dump_ir import IrDump
from pyc.passes.driver.emit_artifact import ProgramsFrom, emit_artifact
from pyc.passes.driver.emit_programs import check_parts, compilers_of
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.driver.refuse_early import gate_of, refuse_early, require_gates_compilers
from pyc.passes.interpretation.range_warnings import range_warnings
from pyc.passes.jobs.registry import check_jobs, executor_of
from pyc.passes.lower import Weight, backends_of
from pyc.passes.mixed_precision.mix_schemes import mix_schemes
from pyc.passes.mixed_precision.mixture import Mixture
from pyc.runtime.artifact.trust.key_sources import ChosenKey, choose_key, find_key
from pyc.runtime.errors import RecipeError
from pyc.runtime.host.cache_folder import cache_directory
from pyc.runtime.host.machine import peak_rss_bytes
from pyc.runtime.host.output_file import OutputFile

if TYPE_CHECKING:
    from pyc.runtime.measure.quality_report import QualityReport

logger = logging.getLogger(__name__)

@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build; `pyc trust revoke` takes its `digest`, not the `sha256` of its file.

    `scheme_bytes` gives the stored bytes of weights by scheme; `codecs` what compression gained; `cache_hits`
    and `cache_misses` count weights and programs. `quality` is what the recipe's gate measured, None without one;
    `mixture` the schemes that were chosen, None where the recipe names them.
    """

    path: Path
    sha256: str
    digest: str
    size_bytes: int
    elapsed_s: float
    peak_rss_bytes: int
    tensors: int
    scheme_bytes: tuple[tuple[str, int], ...]
    codecs: tuple[CodecUse, ...]
    cache_hits: int
    cache_misses: int
    fingerprint: str | None
    quality: QualityReport | None = None
    mixture: Mixture | None = None

    def __repr__(self) -> str:
        """What a reader wants first; every field is an attribute."""
        schemes = ", ".join(f"{name} {size:,}" for name, size in self.scheme_bytes)
        return (
            f"BuildResult({str(self.path)!r}, {self.size_bytes:,} bytes in {self.elapsed_s:.1f} s, "
            f"sha256={self.sha256[:12]}..., key={self.fingerprint or 'none'}, tensors={self.tensors}: {schemes} bytes)"
        )


def build(
    recipe: str | os.PathLike[str] | Mapping[str, object] | Recipe,
    *,
    output: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    jobs: str | None = None,
    use_cache: bool = True,
    force: bool = False,
    download: bool = False,
    key: str | os.PathLike[str] | None = None,
    dump_ir: str | os.PathLike[str] | None = None,
    progress: Callable[[BuildEvent], None] | None = None,
    programs_from: ProgramsFrom | None = None,
    sources: tuple[tuple[str, str], ...] = (),
) -> BuildResult:
    """Build the artifact that a recipe describes: a path to model.yaml, its contents as a dict, or a Recipe.

    The path of a checkpoint's folder, or a hub id, is built with the recipe that `pyc init` would write. With
    `download`, what the local cache lacks of hub models is fetched; without it no network is used.
    `output` overrides the recipe's path; `overrides` are "key=value" as for --set; `workers` threads evaluate weights
    (without it one for each CPU that the process can use), or, with `jobs`, as many jobs at once of a Ray cluster:
    "ray" for the one on this machine, "ray://HOST:PORT" for another (`passes.jobs.registry`). A file that is there is
    replaced when it is an artifact, or with `force`; one that the build reads never is. `key` is a key file to sign
    with; without it `key_sources` says which. `dump_ir` is a folder that gets the module as text after each pass.
    `programs_from` has the programs in place of compilers, out of the files `sources`, each with what it is. Raises the
    errors of `pyc.runtime.errors`; then nothing is left behind.
    """
    started_s = time.perf_counter()
    check_progress(progress)
    check_path(output, "output")
    check_path(key, "key")
    check_path(dump_ir, "dump_ir")
    check_workers(workers)
    check_flags(use_cache=use_cache, force=force, download=download)
    check_jobs(jobs, use_cache=use_cache)
    if programs_from is None:
        compilers_of(())  # those that are not installed are missed before anything is fetched
    report = progress or log_note
    parsed = parse(recipe, overrides, download, report)
    target = output_file(parsed, output, force=force)
    target = replace(target, sources=(*target.sources, *sources))
    replace(target, force=True).check()  # the rest when it is known what is read
    cache = build_cache(use_cache)
    backends = backends_of(parsed, cache)
    if programs_from is None:
        compilers_of(backends.values())
    else:
        require_gates_compilers(parsed)
    existing = find_key(parsed.artifact.key, key)  # what is wrong with it is said before the work
    observe: Observer = (lambda name, module: None) if dump_ir is None else IrDump(dump_ir)
    report(BuildEvent("ingest", 0, 0))
    with build_context(cache, workers, jobs) as context:
        result = _built(parsed, target, context, backends, (existing, key), report, observe, programs_from)
    cache.trim()
    return replace(result, elapsed_s=time.perf_counter() - started_s)


@contextmanager
def build_context(cache: Cache, workers: int | None = None, jobs: str | None = None) -> Iterator[BuildContext]:
    """Yield what a build with these arguments has; the files are open, and jobs are done, as long as the context lasts.

    Raises RecipeError, and with `jobs` MissingExtraError and ClusterError.
    """
    count = check_workers(workers)
    with executor_of(jobs, count if jobs is None else workers, cache) as executor, SourceFiles() as files:
        yield BuildContext(files, cache, executor, count, build_inside)


def build_inside(
    recipe: Recipe,
    context: BuildContext,
    *,
    output: Path,
    key: Path | None = None,
    progress: Callable[[BuildEvent], None] | None = None,
) -> BuildResult:
    """Build an artifact for who has the context of a build, such as another build: with its open files, cache and
    workers. `key` is a key file, as that of `build`.

    What it looks up in the cache does not count among that build's hits and misses. Raises the errors of `build`.
    """
    report = progress or log_note
    context.files.check()
    report(BuildEvent("ingest", 0, 0))
    backends = backends_of(recipe, context.cache)
    target, existing = output_file(recipe, output), find_key(recipe.artifact.key, key)
    with context.cache.counting_apart():
        return _built(recipe, target, context, backends, (existing, key), report)


def _built(
    recipe: Recipe,
    target: OutputFile,
    context: BuildContext,
    backends: Mapping[str, Backend],
    keys: tuple[ChosenKey | None, str | os.PathLike[str] | None],
    report: Callable[[BuildEvent], None],
    observe: Observer = lambda name, module: None,
    programs_from: ProgramsFrom | None = None,
) -> BuildResult:
    """Read, measure, calibrate, lower and emit; `keys`: what `find_key` found, and the file that was given."""
    started_s = time.perf_counter()
    files, cache, executor, count = context.files, context.cache, context.executor, context.workers
    existing, key = keys
    done = total = 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        report(BuildEvent("emit", done, total))

    warn_of_unread_text(recipe)
    with calibration(recipe, files, cache, lambda *what: report(BuildEvent(*what)), executor, count) as rounding:
        is_measured = recipe.quantize.calibrates() or recipe.quantize.goal() is not None
        if is_measured:
            refuse_early(recipe, files, cache, backends, with_key(target, existing), programs_from)
        mixture = mixed(recipe, context, backends, report)
        recipe = recipe if mixture is None else mixture.recipe
        lowered = lower_recipe(recipe, files, cache, backends, range_warnings(files, observe), rounding)
        if not is_measured:
            check_parts(lowered, recipe)
        target = with_sources(target, lowered.common)
        target.check()
        chosen = existing or choose_key(recipe.artifact.key, key)
        if chosen.is_new:
            report(BuildEvent("ingest", 0, 0, chosen.announcement()))
        target = with_key(target, chosen)
        target.check()
        gate = gate_of(recipe, lowered.common, files, target)
        passed: list[QualityReport] = []

        def accept(path: Path) -> None:
            if gate is not None:
                passed.append(gate.require(path, chosen.key.public, context, lambda *what: report(BuildEvent(*what))))

        weights = lowered.weights()
        total = sum(weight.tensor.size_bytes for weight in weights.values())
        report(BuildEvent("lower", 0, 0))
        summary = emit_artifact(
            lowered,
            recipe,
            target,
            signing_key=chosen.key,
            files=files,
            cache=cache,
            executor=executor,
            progress=advance,
            programs_from=programs_from,
            weights_done=lambda: None if programs_from else report(BuildEvent("compile", 0, 0)),
            accept=accept,
        )
    report(BuildEvent("done", total, total))
    result = result_of(summary, weights, cache, time.perf_counter() - started_s)
    return replace(result, quality=passed[0] if passed else None, mixture=mixture)


def result_of(
    summary: ArtifactSummary, weights: Mapping[str, Weight], cache: Cache, elapsed_s: float
) -> BuildResult:
    """Return what is told of a finished build, but for a gate and a mixture."""
    by_scheme: dict[str, int] = {}
    for weight in weights.values():
        scheme = weight.tensor.scheme.name
        by_scheme[scheme] = by_scheme.get(scheme, 0) + weight.tensor.size_bytes
    return BuildResult(
        path=summary.path,
        sha256=summary.sha256,
        digest=summary.digest,
        size_bytes=summary.size_bytes,
        elapsed_s=elapsed_s,
        peak_rss_bytes=peak_rss_bytes(),
        tensors=len(weights),
        scheme_bytes=tuple(sorted(by_scheme.items())),
        codecs=summary.codecs,
        cache_hits=cache.hits,
        cache_misses=cache.misses,
        fingerprint=summary.fingerprint,
    )


def parse(
    recipe: str | os.PathLike[str] | Mapping[str, object] | Recipe,
    overrides: Sequence[str] = (),
    download: bool = False,
    progress: Callable[[BuildEvent], None] = log_note,
) -> Recipe:
    """Return the recipe, read and checked, its hub models fetched with `download`; raises RecipeError."""

    def report(done_bytes: int, total_bytes: int) -> None:
        progress(BuildEvent("download", done_bytes, total_bytes))

    check_source(recipe)
    overrides = check_overrides(overrides)
    if not isinstance(recipe, Recipe | Mapping):
        parsed, note = read_source(recipe, overrides, download=download, report=report)
        if note:
            progress(BuildEvent("ingest", 0, 0, note))
        return parsed
    if isinstance(recipe, Recipe) and overrides:
        raise RecipeError("overrides apply to a recipe that is read, not to a Recipe; change its fields")
    parsed = recipe if isinstance(recipe, Recipe) else recipe_from(recipe, overrides)
    if download:
        fetch(parsed, report)
    return parsed


def build_cache(use_cache: bool) -> Cache:
    """Return this machine's build cache, or one that keeps nothing."""
    folder = cache_directory() if use_cache else None
    if use_cache and folder is None:
        logger.warning("cache: no home directory; building without a cache; set PYC_CACHE_DIR to have one")
    return Cache(folder)


def mixed(
    recipe: Recipe, context: BuildContext, backends: Mapping[str, Backend], report: Callable[[BuildEvent], None]
) -> Mixture | None:
    """Return the schemes that are chosen for a recipe with a goal, None for one that names them all."""
    if recipe.quantize.goal() is None:
        return None
    ingested = ingest_recipe(recipe, context.files, context.cache, backends)
    return mix_schemes(ingested, context, lambda *what: report(BuildEvent(*what)))
