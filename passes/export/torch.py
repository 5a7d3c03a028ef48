"""Export to torch: a model as a program of torch.export, which torch, torch-tensorrt and others read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyc.compiler.recipe.types import Recipe
from pyc.passes.build_events import BuildEvent, log_note
from pyc.passes.driver.build import build_cache, build_context, parse
from pyc.passes.driver.build_calibration import calibration
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.export.folder import new_folder
from pyc.passes.export.source import exportable, is_artifact, refuse_virtual_tokens, with_chosen_schemes
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import MissingExtraError
from pyc.runtime.host.extras import install_line

if TYPE_CHECKING:
    from pyc.backends.torch_tensorrt.module import DecoderModule, EncoderModule

PROGRAM = "model.pt2"

Report = Callable[[BuildEvent], None]


@dataclass(frozen=True, slots=True)
class _Model:
    """What is exported: the module of torch, what it is, the buckets that say its sizes, and files beside it."""

    module: DecoderModule | EncoderModule
    info: ModelInfo
    tokens: tuple[int, ...]
    batch: tuple[int, ...]
    files: tuple[tuple[str, bytes], ...]


def export_torch(
    source: str | os.PathLike[str] | Mapping[str, object] | Recipe,
    folder: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    download: bool = False,
    progress: Report | None = None,
) -> Path:
    """Write the new folder `folder`, with `model.pt2` and the tokenizer's files in it, and return it.

    `source` is what `pyc.build` takes: a recipe's path, its contents or a Recipe, a checkpoint's folder or a hub id;
    `overrides` and `download` are as there, and its targets do not matter. Or an artifact with a program for ONNX. The
    program has the source's weights, adapters fused, quantized ones as codes and scales; it computes in f32, and takes
    any number of tokens and sequences up to the largest buckets, and any cache that the context allows. Inputs and
    outputs are those of `backends.torch_tensorrt.module`, described in the file's `pyc_interface.json`. Nothing is
    compiled, and no GPU is needed. Raises the errors of `build` and of `open_artifact`, MissingExtraError when torch
    is not installed, and ArtifactError for a folder that is not empty or cannot be written.
    """
    try:
        from pyc.backends.torch_tensorrt.export import export_program, save_program
        from pyc.backends.torch_tensorrt.interface import interface_of
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError(f"export: torch is not installed; to install it, {install_line('torch')}") from error

    report = progress or log_note
    with new_folder(folder) as made:
        if isinstance(source, Recipe | Mapping) or not is_artifact(source):
            model = _of_recipe(source, overrides, download, report)
        else:
            model = _of_artifact(source, overrides)
        report(BuildEvent("compile", 0, 0))
        interface = interface_of(model.info, model.tokens, model.batch)
        with open(made / PROGRAM, "xb") as file:
            save_program(export_program(model.module, interface), interface, file)
        for name, data in model.files:
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    report(BuildEvent("done", 0, 0))
    return Path(os.path.normpath(folder))


def _of_recipe(
    source: str | os.PathLike[str] | Mapping[str, object] | Recipe,
    overrides: Sequence[str],
    download: bool,
    report: Report,
) -> _Model:
    from pyc.backends.torch_tensorrt.module import reference_module

    recipe = parse(source, overrides, download, report)
    refuse_virtual_tokens(recipe)
    with build_context(build_cache(use_cache=True)) as context:
        recipe = with_chosen_schemes(recipe, context, report)
        report(BuildEvent("ingest", 0, 0))
        files, cache, executor = context.files, context.cache, context.executor
        calibrates = calibration(
            recipe, files, cache, lambda *what: report(BuildEvent(*what)), executor, context.workers
        )
        with calibrates as rounding:
            module = lower_recipe(recipe, files, cache, {}, rounding=rounding).common
            report(BuildEvent("emit", 0, 0))
            made = reference_module(module, files)
    return _Model(made, module.info, recipe.shapes.tokens, recipe.shapes.batch, module.files)


def _of_artifact(source: str | os.PathLike[str], overrides: Sequence[str]) -> _Model:
    from pyc.backends.torch_tensorrt.module import module_of
    from pyc.passes.export.logical import logical

    with exportable(source, overrides=overrides) as opened:
        artifact = opened.artifact
        info = artifact.header.model
        made = module_of(*logical(opened))
        programs = artifact.header.programs
        steps = {function.tokens for p in programs for function in p.functions if function.name in ("forward", "embed")}
        files = tuple((name, artifact.blob(name)) for name in opened.files())
    return _Model(made, info, tuple(sorted(steps)), (1, info.max_sequences), files)
