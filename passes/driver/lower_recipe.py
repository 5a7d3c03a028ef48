"""Lower a recipe: its sources to the modules of its targets, everything that is known without reading a weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyc.backends.protocol import Backend
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Observer, run_passes
from pyc.compiler.recipe.types import Recipe
from pyc.passes.adapters.check_adapters import checking_effects
from pyc.passes.adapters.compute_prefix import compute_prefix
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.lower import Lowered, backends_of, lower
from pyc.passes.pipeline import pipeline


def lower_recipe(
    recipe: Recipe,
    files: SourceFiles | None = None,
    cache: Cache | None = None,
    backends: Mapping[str, Backend] | None = None,
    observe: Observer = lambda name, module: None,
    rounding: Callable[[Module], Module] | None = None,
) -> Lowered:
    """Return the lowered modules of a recipe: everything that is known without reading a weight.

    What it read stays open in `files`; without them nothing does. What `cache` knows is not found out again. `backends`
    are those of the recipe's targets, and `observe` is told of every pass. `rounding` is what happens to the common
    module before those of targets are made; without one, no weight is read, and a prefix has no values. Raises
    IngestError, AdapterError, QuantizeError, RecipeError and LowerError.
    """
    if files is None:
        with SourceFiles() as files:
            return lower_recipe(recipe, files, cache, backends, observe)
    if backends is None:
        backends = backends_of(recipe, cache or Cache(None))
    ingested = ingest_recipe(recipe, files, cache, backends)
    checking = checking_effects(ingested.adapters, files, observe)
    checking("ingest", ingested.module)
    common = run_passes(ingested.module, pipeline(recipe, ingested.adapters), observe=checking)
    if rounding is not None:
        common = rounding(compute_prefix(common, ingested.adapters, files))
    return lower(common, backends, observe)
