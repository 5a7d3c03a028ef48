"""Where a build writes, and the files that it reads, which it never replaces."""

from __future__ import annotations

import os
from dataclasses import replace

from pyc.compiler.ir import Module
from pyc.compiler.operands import sources as weight_sources
from pyc.compiler.recipe.types import Recipe
from pyc.passes.calibration.imported_importance import importance_source
from pyc.runtime.artifact.format import MAGIC
from pyc.runtime.artifact.trust.key_sources import ChosenKey
from pyc.runtime.host.output_file import OutputFile, output_path


def output_file(recipe: Recipe, output: str | os.PathLike[str] | None, *, force: bool = False) -> OutputFile:
    """Return where a build writes: `output`, else what the recipe says. Raises ArtifactError when that is no file."""
    path = output_path(recipe.output() if output is None else output)
    return OutputFile(path, tuple(named_files(recipe)), MAGIC, force=force)


def named_files(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the recipe's file and those that it names beside the model's, and what each is."""
    sources = [(recipe.file, "the recipe")] if recipe.file else []
    if recipe.quality is not None:
        sources.append((str(recipe.locate(recipe.quality.text)), "the text of the gate"))
    if recipe.quantize.reads_text() and recipe.quantize.calibration.text:
        sources.append((str(recipe.locate(recipe.quantize.calibration.text)), "the calibration text"))
    importance = importance_source(recipe)
    if importance is not None:
        sources.append((importance.path, "the importance matrix"))
    return sources


def with_sources(output: OutputFile, module: Module) -> OutputFile:
    """Return `output` that knows every file the build of `module` reads."""
    named = {source.path: source.name for source in module.sources}
    read = {source.path for weight in module.weights.values() for source in weight_sources(weight)}
    files = sorted({**dict.fromkeys(read, "weights"), **named}.items())
    return replace(output, sources=(*output.sources, *((path, f"{name} of the model") for path, name in files)))


def with_key(output: OutputFile, chosen: ChosenKey | None) -> OutputFile:
    """Return `output` that knows the file of the key, if there is one."""
    if chosen is None or chosen.file is None:
        return output
    return replace(output, sources=(*output.sources, (str(chosen.file), "the signing key")))
