"""Attach: the weights of a checkpoint to programs that are compiled already, without a compiler (ADR 51)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.types import Recipe
from pyc.models.catalog import load_model
from pyc.passes.build_events import BuildEvent, log_note
from pyc.passes.calibration.rounding import scaling_algorithms
from pyc.passes.driver.build import BuildResult, build, parse
from pyc.passes.driver.build_arguments import (
    check_flags,
    check_overrides,
    check_path,
    check_progress,
    check_source,
    check_trust,
)
from pyc.passes.driver.build_source import names_model
from pyc.passes.driver.default_recipe import name_of, reference_from
from pyc.passes.driver.ingest_recipe import source_of
from pyc.passes.driver.module_differences import model_refusal, scaling_refusal
from pyc.passes.driver.take_programs import TakenPrograms
from pyc.runtime.artifact.program_only import is_program_only
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.policy import asked_file, asked_policy
from pyc.runtime.errors import IngestError, LowerError, PycError, QuantizeError, RecipeError

logger = logging.getLogger(__name__)


def attach(
    program: str | os.PathLike[str],
    source: str | os.PathLike[str] | Mapping[str, object] | Recipe,
    *,
    output: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    use_cache: bool = True,
    force: bool = False,
    download: bool = False,
    key: str | os.PathLike[str] | None = None,
    trust: str | os.PathLike[str] = "required",
    progress: Callable[[BuildEvent], None] | None = None,
) -> BuildResult:
    """Build what a recipe describes, its programs taken from the artifact `program`, which a trusted key has signed.

    `trust` says whose signature `program` needs, as `load` has it. A checkpoint's folder, or a hub id, in place of a
    recipe is built as `program` was, without the adapters and the tokenizer that its recipe names. The artifact is byte
    for byte that of `build` with the same recipe and key. Arguments beside are those of `build`, and so are errors;
    LowerError says what differs where the programs are those of another module.
    """
    check_progress(progress)
    check_path(program, "program", may_lack=False)
    check_flags(use_cache=use_cache, force=force, download=download)
    check_source(source)
    asked = check_trust(trust)
    report = progress or log_note
    read = [(os.fspath(program), "the program")]
    if (file := asked_file(asked)) is not None:
        read.append((str(file), "whom to trust"))
    with open_artifact(program, mode="pread") as opened:
        require_trusted(opened, asked_policy(asked))
        fitting: AbstractContextManager[None] = nullcontext()
        if not isinstance(source, Recipe | Mapping) and names_model(os.fspath(source), download=download):
            recipe = recipe_for(os.fspath(source), opened, overrides, lambda made: parse(made, (), download, report))
            fitting = _of_its_model(opened, recipe)
        else:
            recipe = parse(source, overrides, download, report)
        scaling = scaling_algorithms(recipe.quantize.algorithms())
        if scaling and is_program_only(opened.header):
            raise LowerError(scaling_refusal(opened.path, scaling[0]))
        with fitting:
            return build(
                recipe,
                output=output,
                workers=workers,
                use_cache=use_cache,
                force=force,
                key=key,
                progress=progress,
                programs_from=partial(TakenPrograms, opened),
                sources=tuple(read),
            )


@contextmanager
def _of_its_model(program: Artifact, recipe: Recipe) -> Iterator[None]:
    """Raise LowerError in place of what the program's own recipe leads to with a checkpoint of another model: nobody
    wrote that recipe for it."""
    try:
        yield
    except (IngestError, QuantizeError, RecipeError) as error:
        refusal = None
        with SourceFiles(is_quiet=True) as files, suppress(PycError):
            refusal = model_refusal(program, load_model(source_of(recipe), files=files).info)
        if refusal is None:
            raise
        raise LowerError(refusal) from error


def recipe_for(
    checkpoint: str,
    program: Artifact,
    overrides: Sequence[str] = (),
    fetch: Callable[[Recipe], Recipe] = lambda recipe: recipe,
) -> Recipe:
    """Return the recipe by which `program` was built, of another checkpoint, without adapters, and with the tokenizer
    of that checkpoint.

    `fetch` fetches what the recipe names, before the checkpoint is looked at. An encoder's texts are cut where that
    says; a program that takes fewer tokens is warned of.
    Raises IngestError as `build` does, LowerError for an encoder of another model than the program's, and RecipeError
    where the recipe reads files that this machine may not have: the text of a gate or of a calibration, or its
    importance matrix.
    """
    try:
        document = json.loads(program.header.provenance.recipe)
        named = {
            "quality": document["quality"],
            "quantize.calibration.text": document["quantize"]["calibration"]["text"],
            "quantize.calibration.imatrix": document["quantize"]["calibration"].get("imatrix"),
        }
        artifact = {**document["artifact"], "path": None, "key": "default"}
        shapes = dict(document["shapes"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecipeError(f"{program.path}: its recipe cannot be read; give a recipe of your own") from error
    for name, value in named.items():
        if value is not None:
            raise RecipeError(f"{program.path}: its recipe has {name}, a file beside it; give the recipe itself")
    model = reference_from(checkpoint, Path())
    wanted = {**document, "model": model, "adapters": [], "merge": None, "tokenizer": None, "artifact": artifact}
    set_by_user, name = check_overrides(overrides), name_of(checkpoint)
    if program.header.model.kind != "encoder":
        return fetch(recipe_from({**wanted, "shapes": shapes}, set_by_user, name=name))
    shapes |= {"context": program.header.model.context, "text_tokens": None}
    recipe = fetch(recipe_from({**wanted, "shapes": shapes}, set_by_user, name=name))
    shapes["text_tokens"] = _text_tokens(recipe, program)
    return recipe_from({**wanted, "shapes": shapes}, set_by_user, name=name)


def _text_tokens(recipe: Recipe, program: Artifact) -> int | None:
    """Return `shapes.text_tokens` with which texts are cut where the checkpoint says, by a program that may take fewer
    tokens. Raises LowerError for a checkpoint of another model, of which nothing else is to be said."""
    with SourceFiles(is_quiet=True) as files:  # they are read again behind this
        module = load_model(source_of(recipe), files=files)
    own, context = module.info.context, program.header.model.context
    if own > context:
        if refusal := model_refusal(program, module.info):
            raise LowerError(refusal)
        logger.warning(
            "%s: texts are cut at the %d tokens that %s is compiled for, and the checkpoint reads %d; vectors of "
            "longer texts are others than those of sentence-transformers; for equal ones build a program with "
            "shapes.context=%d",
            recipe.model, context, program.path, own, own,
        )  # fmt: skip
    return own if own < context else None
