"""THE pipeline: every pass that a build runs, in order. Read this first.

ingest    models.catalog.load_model                     checkpoint -> Module
fuse      fuse_lora, fuse_ia3 (one an adapter, in the recipe's order)
store     quantize_round_to_nearest, fold_norm          what every weight is stored as
stack     stack_linear                                  QKV, gate and up
lower     lower_gated, lower_attention, lower_activations, lower_layout, lower_prompt
emit      passes.emit_programs, passes.emit_artifact    Module -> model.pyca
"""

from __future__ import annotations

from pyc.compiler.manager import Pass
from pyc.compiler.recipe_types import Recipe
from pyc.models.adapters import Adapter
from pyc.passes.fold_norm import FoldNorm
from pyc.passes.fuse_ia3 import FuseIa3
from pyc.passes.fuse_lora import FuseLora
from pyc.passes.lower_activations import LowerActivations
from pyc.passes.lower_attention import LowerAttention
from pyc.passes.lower_gated import LowerGated
from pyc.passes.lower_layout import LowerLayout
from pyc.passes.lower_prompt import LowerPrompt
from pyc.passes.quantize_round_to_nearest import QuantizeRoundToNearest
from pyc.passes.stack_linear import StackLinear


def pipeline(recipe: Recipe, adapters: tuple[tuple[Adapter, float], ...]) -> tuple[Pass, ...]:
    """Return the passes of a build, in order; `adapters` are the recipe's, read, with their weights."""
    fuse: list[Pass] = []
    for adapter, weight in adapters:
        fuse.append(FuseLora(adapter, weight) if adapter.kind == "lora" else FuseIa3(adapter, weight))
    return (
        *fuse,
        QuantizeRoundToNearest(recipe.quantize),
        FoldNorm(),
        StackLinear(),
        LowerGated(),
        LowerAttention(),
        LowerActivations(),
        LowerLayout(),
        LowerPrompt(),
    )
