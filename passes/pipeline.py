"""THE pipeline: every pass that a build runs, in order. Read this first.

ingest    models.catalog.load_model                     checkpoint -> Module
fuse      fuse_lora and others, one an adapter, in the recipe's order; or fuse_merged
store     assign_schemes, fold_norm                     what every weight is stored as
stack     stack_linear                                  QKV, gate and up
prefix    compute_prefix                                keys and values of virtual tokens, where an adapter has some
lower     passes.lower: backend.passes(), each target's on the result of the above
emit      passes.emit_programs, passes.emit_artifact    Module -> model.pyca

Down to stack, passes know logical operators and no layout, and run once, whatever the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyc.compiler.manager import Pass
from pyc.compiler.recipe.types import Recipe
from pyc.models.adapter_fields import Kind
from pyc.models.adapters import Adapter
from pyc.passes.adapters.fuse_boft import FuseBoft
from pyc.passes.adapters.fuse_dora import FuseDora
from pyc.passes.adapters.fuse_ia3 import FuseIa3
from pyc.passes.adapters.fuse_loha import FuseLoha
from pyc.passes.adapters.fuse_lokr import FuseLokr
from pyc.passes.adapters.fuse_lora import FuseLora
from pyc.passes.adapters.fuse_merged import FuseMerged
from pyc.passes.adapters.fuse_oft import FuseOft
from pyc.passes.adapters.fuse_trainable_tokens import FuseTrainableTokens
from pyc.passes.adapters.fuse_vera import FuseVera
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.fold_norm import FoldNorm
from pyc.passes.stack_linear import StackLinear

FUSE: Mapping[Kind, Callable[[Adapter, float], Pass]] = {
    "lora": FuseLora,
    "dora": FuseDora,
    "ia3": FuseIa3,
    "loha": FuseLoha,
    "lokr": FuseLokr,
    "vera": FuseVera,
    "oft": FuseOft,
    "boft": FuseBoft,
    "trainable_tokens": FuseTrainableTokens,
}
"""The pass of every kind of adapter that changes weights."""

HOLDS = frozenset({"stored", "stacked"})
"""What a module has behind the pipeline, for the passes of backends to require."""


def pipeline(recipe: Recipe, adapters: tuple[tuple[Adapter, float], ...]) -> tuple[Pass, ...]:
    """Return the passes that come before those of backends; `adapters` are the recipe's, read, with their weights.

    Those that bring virtual tokens change no weight: `compute_prefix` comes behind these passes.
    """
    return (*fuse_passes(recipe, adapters), *store_passes(recipe), StackLinear())


def fuse_passes(recipe: Recipe, adapters: tuple[tuple[Adapter, float], ...]) -> tuple[Pass, ...]:
    """Return the passes of the pipeline that put adapters into weights."""
    if recipe.merge is not None:
        return (FuseMerged(adapters, recipe.merge),)
    return tuple(FUSE[adapter.kind](adapter, weight) for adapter, weight in adapters if adapter.virtual is None)


def store_passes(recipe: Recipe) -> tuple[Pass, ...]:
    """Return the passes of the pipeline that say what every weight is stored as."""
    return (AssignSchemes(recipe.quantize, recipe.override_places), FoldNorm())
