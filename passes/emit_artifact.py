"""Emit the artifact: programs, files and weights in the order of first use, then header, signature and provenance."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyc.compiler.artifact import ArtifactSummary, ArtifactWriter
from pyc.compiler.cache import Cache
from pyc.compiler.digest import expression_digest
from pyc.compiler.ir import Module
from pyc.compiler.recipe import recipe_text
from pyc.compiler.recipe_types import Recipe
from pyc.compiler.storage import stored_tensor
from pyc.passes.emit_programs import emit_programs
from pyc.passes.emit_weights import emit_weight
from pyc.runtime import trust
from pyc.runtime.format import Program, Provenance, SourceFile, Tool

_TOOLS = ("apache-tvm", "apache-tvm-ffi", "ziglang", "numpy", "zstandard", "lz4", "pyc-compiler")
"""Distributions whose versions decide an artifact's bytes."""


def emit_artifact(
    module: Module,
    recipe: Recipe,
    output: Path,
    *,
    sources: tuple[SourceFile, ...],
    digests: Mapping[str, str],
    cache: Cache,
    workers: int,
    progress: Callable[[int], None],
) -> ArtifactSummary:
    """Write `module` to `output` and return what was written.

    `sources` is for provenance; `digests` gives the digest of every source file by path, for the cache.
    `progress` is told the bytes of every piece of a weight. Any error, and an interrupt, leaves no file behind
    and an older artifact as it was. Raises LowerError, QuantizeError, IngestError, ArtifactError.
    """
    names = module.graph.weight_names()
    tensors = {name: stored_tensor(module.weights[name]) for name in names}
    expected = sum(tensor.size_bytes for tensor in tensors.values())
    programs: list[Program] = []
    blobs: dict[str, bytes] = {}
    with (
        ArtifactWriter(output, recipe.artifact.codec, expected_bytes=expected) as writer,
        ThreadPoolExecutor(workers, thread_name_prefix="pyc-emit") as pool,
    ):
        for program, files in emit_programs(module, recipe, cache):
            programs.append(program)
            blobs.update(files)
        blobs.update(module.files)
        for name, data in blobs.items():
            writer.add_blob(name, data)
        for name, tensor in tensors.items():
            key = expression_digest(module.weights[name], digests)
            pieces = cache.stream(key, emit_weight(name, module.weights[name], pool, workers))
            writer.add_tensor(name, tensor.dtype, tensor.shape, _counted(pieces, progress))
        return writer.finish(
            model=module.info,
            generation=module.generation,
            programs=tuple(programs),
            provenance=Provenance(recipe=recipe_text(recipe), sources=sources, tools=_tools(), passes=module.passes),
            signing_key=trust.signing_key(recipe.artifact.key),
        )


def _counted(pieces: Iterable[bytes | memoryview], progress: Callable[[int], None]) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        yield piece
        progress(len(piece))


def _tools() -> tuple[Tool, ...]:
    return tuple(Tool(name=name, version=importlib.metadata.version(name)) for name in sorted(_TOOLS))
