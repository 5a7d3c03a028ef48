"""Emit the artifact: files, weights in the order of first use, programs, then header, signature and provenance.

Programs are last in the file because they are ready last: they are compiled while weights are evaluated.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from pyc.compiler.digest import expression_digest
from pyc.compiler.files.artifact import ArtifactSummary, ArtifactWriter
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.operands import sources as weight_sources
from pyc.compiler.recipe.api import recipe_text
from pyc.compiler.recipe.types import Recipe
from pyc.passes.driver.emit_programs import ProgramCompiler, ProgramSource, compilers_of
from pyc.passes.jobs.job import JobExecutor, WeightJob, weight_jobs
from pyc.passes.lower import Lowered, Weight
from pyc.runtime.artifact.format import KV_CACHE_FP8, KV_PREFIX, TRUNCATION, Program, Provenance, SourceFile, Tool
from pyc.runtime.artifact.trust.keys import SigningKey
from pyc.runtime.host.output_file import OutputFile

_TOOLS = ("numpy", "zstandard", "lz4", "pyc-compiler")
"""Distributions whose versions decide an artifact's bytes, beside those that compile programs."""


ProgramsFrom = Callable[[Lowered, Recipe, Cache], ProgramSource]
"""Makes the source of a module's programs."""


def emit_artifact(
    lowered: Lowered,
    recipe: Recipe,
    output: OutputFile,
    *,
    signing_key: SigningKey | None,
    files: SourceFiles,
    cache: Cache,
    executor: JobExecutor,
    progress: Callable[[int], None],
    programs_from: ProgramsFrom | None = None,
    weights_done: Callable[[], None] = lambda: None,
    accept: Callable[[Path], None] = lambda path: None,
) -> ArtifactSummary:
    """Write `lowered` to `output`, signed by `signing_key` if any, and return what was written.

    Weights are jobs of `executor`; sources are read through `files`, which may hold them open already. Programs come
    from `programs_from`, without one from compilers. `progress` is told the bytes of every piece of a weight;
    `weights_done` is called when all are written and only programs may be missing, `accept` with the path of the whole
    artifact before it has its name: its errors refuse it. Any error, and an interrupt, leaves no file behind and an
    older artifact as it was.
    Raises LowerError, QuantizeError, IngestError, ArtifactError.
    """
    module, weights = lowered.common, lowered.weights()
    expected = sum(weight.tensor.size_bytes for weight in weights.values())
    programs: list[Program] = []
    blobs: dict[str, bytes] = {}
    with (
        ArtifactWriter(
            output.path, recipe.artifact.codec, expected_bytes=expected, allowed=output.check
        ) as writer,
        (programs_from or ProgramCompiler)(lowered, recipe, cache) as compiler,
        contextlib.ExitStack() as stack,
    ):
        read = (source.path for weight in weights.values() for source in weight_sources(weight.expression))
        paths = list(dict.fromkeys((*(source.path for source in module.sources), *read)))
        digests = executor.digests(paths, files)
        for name, data in module.files:
            writer.add_blob(name, data)
        if module.prefix is not None:
            writer.add_tensor(KV_PREFIX, "f32", prefix_shape(module), [module.prefix.values])
        jobs = {name: jobs_of(name, weight, digests) for name, weight in weights.items()}
        backends = {part.backend.name: part.backend for part in lowered.parts}
        results = executor.results(chain.from_iterable(jobs.values()), files, backends)
        stack.callback(results.close)
        for name, weight in weights.items():
            compiler.check()
            pieces = chain.from_iterable(islice(results, len(jobs[name])))
            writer.add_tensor(name, weight.tensor.dtype, weight.tensor.shape, _counted(pieces, progress))
        weights_done()
        for program, libraries in compiler.programs():
            programs.append(program)
            blobs.update(libraries)
        for name, data in blobs.items():
            writer.add_blob(name, data)
        files.check()
        return writer.finish(
            model=module.info,
            generation=module.generation,
            programs=tuple(programs),
            provenance=provenance_of(lowered, recipe, files, compiler.tools()),
            signing_key=signing_key,
            requires=(*features_of(module), *((TRUNCATION,) if module.truncation else ())),
            accept=accept,
        )


def prefix_shape(module: Module) -> tuple[int, ...]:
    """Return the shape of a module's virtual tokens, [layers, 2, kv_heads, tokens, head_dim]."""
    prefix, cache = module.prefix, module.info.kv_cache
    assert prefix is not None and cache is not None  # adapters of encoders with virtual tokens are refused
    return (cache.layers, 2, cache.heads, prefix.tokens, cache.head_dim)


def features_of(module: Module) -> tuple[str, ...]:
    """Return what a reader of a module's programs has to know, in order."""
    is_fp8 = module.info.kv_cache is not None and module.info.kv_cache.dtype == "fp8"
    return (*([KV_CACHE_FP8] if is_fp8 else ()), *(() if module.prefix is None else (KV_PREFIX,)))


def provenance_of(
    lowered: Lowered,
    recipe: Recipe,
    files: SourceFiles,
    compilers: tuple[Tool, ...] | None = None,
    *,
    has_weights: bool = True,
) -> Provenance:
    """Return what an artifact records of where it comes from; sources are hashed where `files` has not done so.

    `compilers` made its programs (None: those that are installed). One without weights records no file that has some.
    """
    weights = lowered.weights().values()
    held = {source.path for weight in weights for source in weight_sources(weight.expression)}
    sources = tuple(
        SourceFile(name=source.name, size_bytes=files.size_bytes(source.path), blake3=files.digest(source.path))
        for source in lowered.common.sources
        if has_weights or source.path not in held
    )
    tools = _tools(compilers_of(part.backend for part in lowered.parts) if compilers is None else compilers)
    return Provenance(recipe=recipe_text(recipe), sources=sources, tools=tools, passes=lowered.passes())


def jobs_of(name: str, weight: Weight, digests: Mapping[str, str]) -> tuple[WeightJob, ...]:
    """Return the jobs whose results, in order, are the bytes of a weight; `digests` are those of files by path."""
    digest = expression_digest(weight.expression, digests)
    return weight_jobs(name, weight.expression, weight.tensor, weight.backend.name, digest)


def _counted(pieces: Iterable[bytes | memoryview], progress: Callable[[int], None]) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        yield piece
        progress(len(piece))


def _tools(compilers: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the distributions that made an artifact, with their versions."""
    used = {tool.name: tool.version for tool in compilers}
    used |= {name: importlib.metadata.version(name) for name in _TOOLS}
    return tuple(Tool(name=name, version=used[name]) for name in sorted(used))
