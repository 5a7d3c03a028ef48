"""Ingest: a recipe's checkpoint and adapters, read and checked, before any pass."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pyc.backends.protocol import Backend
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.recipe.types import DEFAULT_CONTEXT_LIMIT, Recipe
from pyc.models.adapters import Adapter, read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelShapes, ModelSource
from pyc.passes.adapters.adapter_targets import has_tied_head
from pyc.passes.adapters.check_adapters import (
    check_values,
    require_same_base,
    warn_of_losses,
    warn_of_names,
    warn_of_tied_heads,
    warn_of_zeros,
)
from pyc.passes.adapters.compute_prefix import reserve_prefix, virtual_tokens_of
from pyc.passes.mixed_precision.scheme_problem import Ingested
from pyc.runtime.errors import LowerError, QuantizeError, RecipeError

logger = logging.getLogger(__name__)


def ingest_recipe(
    recipe: Recipe, files: SourceFiles, cache: Cache | None, backends: Mapping[str, Backend]
) -> Ingested:
    """Return the model of a recipe and its adapters, before any pass. Raises IngestError, AdapterError, RecipeError,
    QuantizeError and LowerError."""
    adapters = _adapters(recipe, files)
    module = _ingest(recipe, files, cache, _block_tokens(backends), virtual_tokens_of(adapters))
    module = reserve_prefix(module, adapters, is_merged=recipe.merge is not None)
    for adapter, _ in adapters:
        check_values(adapter, files)
        logger.info("adapter %s: %s", adapter.name, adapter.kind)
    in_turn = [adapter for adapter, _ in adapters]
    warn_of_names(in_turn, module, files)
    warn_of_tied_heads(in_turn, module, files)
    if recipe.merge is None:
        warn_of_losses(in_turn, files, is_tied=has_tied_head(module))
        require_same_base(in_turn, module, files)
    else:
        warn_of_zeros(adapters, files)
    return Ingested(recipe, module, adapters)


def ingest_sources(recipe: Recipe, files: SourceFiles) -> Ingested:
    """Return the model of a recipe in shapes of its own, and its adapters, unchecked: what is read, and not how.

    Raises IngestError and AdapterError."""
    return Ingested(recipe, load_model(source_of(recipe), files=files), _adapters(recipe, files))


def _adapters(recipe: Recipe, files: SourceFiles) -> tuple[tuple[Adapter, float], ...]:
    """Raise RecipeError, too, for one that is there twice: its difference would be added twice."""
    folder = Path(recipe.folder)
    adapters = tuple((read_adapter(ref.path, folder, files), ref.weight) for ref in recipe.adapters)
    seen: dict[str, int] = {}
    for index, (adapter, _) in enumerate(adapters):
        first = seen.setdefault(os.path.realpath(adapter.path), index)
        if first != index:
            raise RecipeError(
                f"adapters[{index}].path: got {adapter.reference!r}, the folder that adapters[{first}], "
                f"{adapters[first][0].reference!r}, names already; raise its weight instead of listing it twice"
            )
    return adapters


def source_of(recipe: Recipe) -> ModelSource:
    """Return the folders that a recipe reads a model from."""
    return ModelSource(recipe.model, Path(recipe.folder), recipe.adapter_paths(), recipe.tokenizer)


def _block_tokens(backends: Mapping[str, Backend]) -> int | None:
    """Return the positions of a cache block that all backends can do with; None: any number."""
    wanted = {name: backend.cache_block_tokens for name, backend in backends.items() if backend.cache_block_tokens}
    if len(set(wanted.values())) > 1:
        sizes = ", ".join(f"{name} {tokens}" for name, tokens in wanted.items())
        raise LowerError(
            f"targets: backends want cache blocks of different sizes, in tokens: {sizes}; build an artifact for each"
        )
    return next(iter(wanted.values()), None)


def _ingest(
    recipe: Recipe, files: SourceFiles, cache: Cache | None, block_tokens: int | None, virtual_tokens: int
) -> Module:
    """Read the checkpoint with the recipe's context, or the model's own within the default limit."""
    shapes = ModelShapes(
        context=recipe.shapes.context,
        text_tokens=recipe.shapes.text_tokens,
        virtual_tokens=virtual_tokens,
        max_sequences=recipe.shapes.max_sequences,
        kv_dtype=recipe.quantize.kv_cache,
        block_tokens=block_tokens,
    )
    module = load_model(source_of(recipe), shapes, files=files, cache=cache)
    if shapes.context is None and module.info.context - virtual_tokens > DEFAULT_CONTEXT_LIMIT:
        logger.info("context: %d of the model's %d tokens", DEFAULT_CONTEXT_LIMIT, module.info.context)
        shapes = replace(shapes, context=DEFAULT_CONTEXT_LIMIT)
        module = load_model(source_of(recipe), shapes, files=files, cache=cache)
    largest = max(recipe.shapes.tokens)
    if module.info.kind == "encoder" and largest < module.info.context:
        raise RecipeError(
            f"shapes.tokens: the largest is {largest}, but an encoder reads a whole text at once and its context "
            f"is {module.info.context}; add {module.info.context} to shapes.tokens or lower shapes.context"
        )
    if module.info.kind == "encoder" and "yaqa" in recipe.quantize.algorithms():
        raise QuantizeError(
            "quantize.algorithm: yaqa rounds towards predictions of a decoder, and this is an encoder; take gptq"
        )
    return module
