"""What `pyc build` is given: a recipe's file, a checkpoint's folder, or the hub id of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pyc.compiler.recipe.api import load_recipe
from pyc.compiler.recipe.types import Recipe
from pyc.models.hub_cache import hub_id_of, instead_of_url, is_cached
from pyc.passes.driver.default_recipe import default_recipe
from pyc.runtime.errors import RecipeError

Report = Callable[[int, int], None]


def read_source(
    given: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    download: bool = False,
    report: Report = lambda done, total: None,
) -> tuple[Recipe, str]:
    """Return the recipe to build, and what to tell the user about it (empty for a recipe's file).

    A folder with config.json, and a hub id, is built with the recipe that `pyc init` would write. With `download`, what
    the cache lacks of hub models is fetched; `report` is told the bytes that are there, and of how many. Raises
    RecipeError, IngestError, AdapterError.
    """
    text = os.fspath(given)
    if not text or "\0" in text:
        raise RecipeError(f"{text!r}: expected a recipe, a checkpoint's folder or a hub id")
    place = Path(text)
    if is_checkpoint(place):
        return _proposed(text, overrides)
    if not names_model(text, download=download):
        if not _exists(place) and (advice := instead_of_url(text)):
            raise RecipeError(f"{text}: {advice}")
        recipe = load_recipe(place, overrides)
        if download:
            fetch(recipe, report)
        return recipe, ""
    if download:
        fetch_model(text, report)
    return _proposed(text, overrides)


def names_model(text: str, *, download: bool = False) -> bool:
    """Whether `text` is a checkpoint's folder or a hub id, and not a recipe."""
    if is_checkpoint(Path(text)):
        return bool(text)
    return not _exists(Path(text)) and is_hub_id(text) and (download or is_cached(text) or "/" in text)


def is_checkpoint(place: Path) -> bool:
    """Whether `place` is a folder with a config.json."""
    return os.path.isfile(place / "config.json")  # False, too, for a name that the system does not take


def is_hub_id(text: str) -> bool:
    """Whether `text` reads as a hub id, and not as a file."""
    return hub_id_of(text) is not None and not text.endswith((".yaml", ".yml", ".json", ".pyca"))


def fetch(recipe: Recipe, report: Report = lambda done, total: None) -> None:
    """Fetch the model, the tokenizer and the adapters of a recipe that are hub ids and no folders."""
    if not _is_folder(recipe, recipe.model):
        fetch_model(recipe.model, report, with_adapter=recipe.model in recipe.adapter_paths())
    if recipe.tokenizer is not None and not _is_folder(recipe, recipe.tokenizer):
        fetch_tokenizer(recipe.tokenizer, report)
    for adapter in recipe.adapters:
        if not _is_folder(recipe, adapter.path):
            fetch_adapter(adapter.path, report)


def fetch_model(
    reference: str, report: Report = lambda done, total: None, *, with_adapter: bool = False
) -> None:
    """Fetch a checkpoint from the hub; see `hub_download.download`."""
    from pyc.models.hub_download import download

    download(reference, "checkpoint", report, with_adapter=with_adapter)


def fetch_tokenizer(reference: str, report: Report = lambda done, total: None) -> None:
    """Fetch a tokenizer and its chat templates from the hub."""
    from pyc.models.hub_download import download

    download(reference, "tokenizer", report)


def fetch_adapter(reference: str, report: Report = lambda done, total: None) -> None:
    """Fetch an adapter from the hub."""
    from pyc.models.hub_download import download

    download(reference, "adapter", report)


def _is_folder(recipe: Recipe, path: str) -> bool:
    return _exists(recipe.locate(path))


def _exists(place: Path) -> bool:
    return os.path.exists(place)  # Path.exists raises for a name that is too long


def _proposed(checkpoint: str, overrides: Sequence[str]) -> tuple[Recipe, str]:
    recipe, proposal = default_recipe(checkpoint, overrides)
    goal = recipe.quantize.goal()
    if goal is not None:
        return recipe, f"{checkpoint}: no recipe given, so the one of `pyc init`, with schemes chosen by {goal[0]}"
    scheme = recipe.quantize.scheme
    why = f" ({proposal.reason})" if scheme == proposal.scheme else ""
    return recipe, f"{checkpoint}: no recipe given, so the one of `pyc init`: scheme {scheme}{why}"
