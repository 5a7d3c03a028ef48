"""What an export reads: an artifact with a program for ONNX, whose module and rows of weights others can be made of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from pyc.compiler.files.work_folder import sweep, work_folder
from pyc.compiler.ir import Graph
from pyc.compiler.recipe.quantize_rules import GOALS
from pyc.compiler.recipe.types import Recipe, Target
from pyc.compiler.text import parse_graph
from pyc.models.adapters import read_adapter
from pyc.passes.build_context import BuildContext
from pyc.passes.build_events import BuildEvent, log_note
from pyc.passes.driver.build import build_cache, build_context, build_inside, mixed, parse
from pyc.passes.driver.conventions import other_conventions
from pyc.passes.driver.emit_programs import compilers_of
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.lower import backends_of
from pyc.passes.mixed_precision.scheme_problem import problem
from pyc.runtime.artifact.format import Tensor
from pyc.runtime.artifact.kinds import ARTIFACT, kind_of
from pyc.runtime.artifact.prefix import virtual_tokens
from pyc.runtime.artifact.program_only import require_weights
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.errors import AdapterError, ArtifactError, RecipeError
from pyc.runtime.executors.onnx.program import decode_program
from pyc.runtime.sources.places import place_of, scheme_of

_NOWHERE = "keys and values in front of every sequence, for which exported models have no place"


@dataclass(frozen=True, slots=True)
class Exportable:
    """An open artifact, the module of its program for ONNX, and what messages call it: the source as it was given,
    since an artifact that was built of a recipe has a name that nobody knows."""

    artifact: Artifact
    graph: Graph
    label: str

    def tensors(self) -> dict[str, Tensor]:
        """Return what the header says of each tensor."""
        return {tensor.name: tensor for tensor in self.artifact.header.tensors}

    def files(self) -> tuple[str, ...]:
        """Return the names of the checkpoint's files that the artifact carries."""
        libraries = {program.library for program in self.artifact.header.programs}
        return tuple(blob.name for blob in self.artifact.header.blobs if blob.name not in libraries)


@contextlib.contextmanager
def exportable(
    source: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    progress: Callable[[BuildEvent], None] | None = None,
) -> Iterator[Exportable]:
    """Yield what an artifact, a recipe or a checkpoint's folder has to export; the latter two are built first.

    An artifact, which may be a URL, must be signed by a trusted key, as to run it. Raises the errors of `build` and of
    `open_artifact`.
    """
    if is_artifact(source):
        place = place_of(source)
        if overrides:
            raise ArtifactError(f"{place}: --set is for a recipe, and this is an artifact")
        with open_artifact(place) as artifact:
            require_trusted(artifact)
            require_weights(artifact.header, artifact.path)
            yield _exportable(artifact, str(artifact.path))
        return
    sweep()
    report = progress or log_note
    recipe = parse(source, (*overrides, "quality=null"), progress=report)
    refuse_virtual_tokens(recipe)
    compilers_of(())  # those that are not installed are missed before anything is measured
    with work_folder("export") as folder:
        target, cache = folder / "model.pyca", build_cache(use_cache=True)
        with build_context(cache) as context:
            recipe = replace(with_chosen_schemes(recipe, context, report), targets=(Target(backend="onnx"),))
            build_inside(recipe, context, output=target, progress=progress)
        cache.trim()
        with open_artifact(target) as artifact:
            yield _exportable(artifact, os.fspath(source))


def with_chosen_schemes(
    recipe: Recipe, context: BuildContext, report: Callable[[BuildEvent], None] = lambda event: None
) -> Recipe:
    """Return a recipe that names the schemes which a build of it chooses, for its own targets, where it has a goal.

    Raises RecipeError for a goal of speed with something left to choose: another measurement would choose otherwise.
    """
    if recipe.quantize.goal() is None:
        return recipe
    backends = backends_of(recipe, context.cache)
    if recipe.quantize.min_tok_s is not None:
        found = problem(ingest_recipe(recipe, context.files, context.cache, backends))
        if found is not None and found.leaves_a_choice():
            raise RecipeError(_measured_anew(recipe))
    mixture = mixed(recipe, context, backends, report)
    quantize = (recipe if mixture is None else mixture.recipe).quantize
    return replace(recipe, quantize=replace(quantize, **dict.fromkeys(GOALS)))


def _measured_anew(recipe: Recipe) -> str:
    absolute = (path for path in recipe.references() if Path(path).is_absolute())
    cut = "; it has only the last part of absolute paths, so write them again" if next(absolute, None) else ""
    return (
        "quantize.min_tok_s: speed is measured anew each time, so an export would have other schemes than a build; "
        "export the artifact that was built, if it has the target onnx, or the recipe that it records, which `pyc "
        f"inspect ARTIFACT --recipe > chosen.yaml` writes in the recipe's folder{cut}"
    )


def is_artifact(source: str | os.PathLike[str]) -> bool:
    """Whether a source is an artifact: a URL is, a file by how it begins, or, of one that may not be read, its name."""
    if scheme_of(source):
        return True
    is_closed = os.fspath(source).endswith(".pyca") and os.path.exists(source) and not os.access(source, os.R_OK)
    return is_closed or kind_of(source) == ARTIFACT


def refuse_virtual_tokens(recipe: Recipe) -> None:
    """Raise AdapterError when an adapter of a recipe has virtual tokens. Raises AdapterError for broken adapters."""
    for reference in recipe.adapters:
        if read_adapter(reference.path, Path(recipe.folder)).virtual is not None:
            raise AdapterError(
                f"{reference.path}: it has virtual tokens, {_NOWHERE}; export the recipe without it and use it with "
                "PEFT, or run a build of the recipe with pyc"
            )


def _exportable(artifact: Artifact, label: str) -> Exportable:
    programs = artifact.header.programs
    if virtual_tokens(artifact.header):
        raise ArtifactError(
            f"{label}: it has virtual tokens, {_NOWHERE}; export its recipe without the adapter that brings "
            "them"
        )
    found = next((program for program in programs if program.backend == "onnx"), None)
    if found is None:
        there = ", ".join(dict.fromkeys(program.backend for program in programs)) or "nothing"
        raise ArtifactError(
            f"{label}: it has programs for {there} alone, whose weights are packed; export its recipe, "
            "or add `- backend: onnx` to the targets and build it again"
        )
    if others := other_conventions((found,)):
        raise ArtifactError(
            f"{label}: {others[0].told()}; export it with the pyc that built it, or build it again with this one"
        )
    try:
        graph = parse_graph(decode_program(artifact.blob(found.library)).ir)
    except ValueError as error:
        raise ArtifactError(f"{label}: the module of its program for ONNX is not valid: {error}") from error
    return Exportable(artifact, graph, label)
