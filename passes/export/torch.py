"""Export to torch: a recipe's model as a program of torch.export, which torch, torch-tensorrt and others read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.types import Recipe
from pyc.passes.build import BuildEvent, lower_recipe, parse
from pyc.passes.export.folder import new_folder
from pyc.passes.export.source import is_artifact
from pyc.runtime.errors import ArtifactError, LowerError
from pyc.runtime.host.extras import install_line

PROGRAM = "model.pt2"


def export_torch(
    source: str | os.PathLike[str] | Mapping[str, object] | Recipe,
    folder: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    download: bool = False,
    progress: Callable[[BuildEvent], None] | None = None,
) -> Path:
    """Write the new folder `folder`, with `model.pt2` and the tokenizer's files in it, and return it.

    `source` is what `pyc.build` takes: a recipe's path, its contents or a Recipe, a checkpoint's folder or a hub id;
    `overrides` and `download` are as there. Its targets do not matter. The program has the recipe's weights, adapters
    fused, quantized ones as codes and scales; it computes in f32, and takes the sizes of `shapes`: any number of tokens
    and sequences up to the largest buckets, any cache that the context allows. Inputs and outputs are those of
    `backends.torch_tensorrt.module`, described in the file's `pyc_interface.json`. Nothing is compiled, and no GPU is
    needed. Raises the errors of `build`, LowerError when torch is not installed, and ArtifactError for an artifact and
    for a folder that is not empty or cannot be written.
    """
    try:
        from pyc.backends.torch_tensorrt.export import export_program, save_program
        from pyc.backends.torch_tensorrt.interface import interface_of
        from pyc.backends.torch_tensorrt.module import reference_module
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise LowerError(f"export: torch is not installed; to install it, {install_line('torch')}") from error

    if not isinstance(source, Recipe | Mapping) and is_artifact(source):
        raise ArtifactError(f"{os.fspath(source)}: is an artifact; the export to torch takes its recipe or checkpoint")
    report = progress or (lambda event: None)
    with new_folder(folder) as made:
        recipe = parse(source, overrides, download, report)
        report(BuildEvent("ingest", 0, 0))
        with SourceFiles() as files:
            module = lower_recipe(recipe, files, backends={}).common
            report(BuildEvent("emit", 0, 0))
            reference = reference_module(module, files)
        report(BuildEvent("compile", 0, 0))
        interface = interface_of(module.info, recipe.shapes.tokens, recipe.shapes.batch)
        with open(made / PROGRAM, "xb") as file:
            save_program(export_program(reference, interface), interface, file)
        for name, data in module.files:
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    report(BuildEvent("done", 0, 0))
    return Path(folder)
