"""The recipe (model.yaml): what to build; docs/recipe.md is its reference.

`load_recipe` reads a file, `recipe_from` a Python mapping; both are equally strict and return a `Recipe`
whose names are canonical (aliases of schemes resolved, buckets ascending, instruction sets listed).
`recipe_text` writes it back as canonical JSON, which is again a recipe: it is what an artifact records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from pyc.compiler.recipe.decode import decode_document
from pyc.compiler.recipe.nodes import apply_override, node_of, read_node
from pyc.compiler.recipe.places import mark_of
from pyc.compiler.recipe.types import AdapterRef, Document, Quantize, Recipe
from pyc.compiler.recipe.yaml import Node


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file; `overrides` are `key.sub=value` texts, applied in order with the same strictness.

    Raises RecipeError `FILE:LINE:COL: key: got ..., expected ...` or `--set ...: key: ...`.
    """
    place = Path(path)
    return _recipe(read_node(place), overrides, folder=str(place.parent), name=place.stem, file=str(place))


def recipe_from(
    value: Mapping[str, object],
    overrides: Sequence[str] = (),
    *,
    folder: str | Path = ".",
    name: str = "model",
) -> Recipe:
    """Return the recipe that a Python mapping spells, with relative paths anchored at `folder`.

    Raises RecipeError `recipe: key: got ..., expected ...`.
    """
    return _recipe(node_of(value, "recipe"), overrides, folder=str(folder), name=name)


def recipe_text(recipe: Document) -> str:
    """Return the recipe as canonical JSON (sorted keys, every default written out), itself a valid recipe.

    It names no place of this machine: relative paths stand as given, of an absolute one only its last part.
    """
    neutral = Document(
        model=neutral_path(recipe.model),
        tokenizer=None if recipe.tokenizer is None else neutral_path(recipe.tokenizer),
        adapters=tuple(
            AdapterRef(path=neutral_path(adapter.path), weight=adapter.weight) for adapter in recipe.adapters
        ),
        merge=recipe.merge,
        quantize=_neutral_calibration(recipe.quantize),
        shapes=recipe.shapes,
        targets=recipe.targets,
        artifact=msgspec.structs.replace(
            recipe.artifact, path=neutral_path(recipe.artifact.path) if recipe.artifact.path else None
        ),
        quality=recipe.quality and msgspec.structs.replace(recipe.quality, text=neutral_path(recipe.quality.text)),
    )
    return msgspec.json.encode(neutral, order="sorted").decode()


def _recipe(node: Node, overrides: Sequence[str], *, folder: str, name: str, file: str = "") -> Recipe:
    for text in overrides:
        node = apply_override(node, text)
    document = decode_document(node)
    return Recipe(
        model=document.model,
        tokenizer=document.tokenizer,
        adapters=document.adapters,
        merge=document.merge,
        quantize=document.quantize,
        shapes=document.shapes,
        targets=document.targets,
        artifact=document.artifact,
        quality=document.quality,
        folder=folder,
        name=name,
        file=file,
        override_places=tuple(
            str(mark_of(node, "quantize", "overrides", index, "match"))
            for index in range(len(document.quantize.overrides))
        ),
    )


def _neutral_calibration(quantize: Quantize) -> Quantize:
    given = quantize.calibration
    text, imatrix = (None if path is None else neutral_path(path) for path in (given.text, given.imatrix))
    calibration = msgspec.structs.replace(given, text=text, imatrix=imatrix)
    return msgspec.structs.replace(quantize, calibration=calibration)


def neutral_path(path: str) -> str:
    """Return a path as an artifact records it: of an absolute one, which is of one machine, the last part alone."""
    pure = PurePosixPath(path)
    return (pure.name or "/") if pure.is_absolute() else path
