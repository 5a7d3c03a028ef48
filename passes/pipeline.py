"""THE pipeline: every pass that a build runs, in order. Read this first.

ingest    models.catalog.load_model                     checkpoint -> Module
fuse      fuse_lora, fuse_ia3 (one an adapter, in the recipe's order)
store     assign_schemes, fold_norm          what every weight is stored as
stack     stack_linear                                  QKV, gate and up
lower     fuse_gate_up, lower_attention, lower_activations, lower_layout, specialize_prefill
emit      passes.emit_programs, passes.emit_artifact    Module -> model.pyca
"""

from __future__ import annotations

from pyc.backends.cpu.passes.fuse_gate_up import FuseGateUp
from pyc.backends.cpu.passes.lower_activations import LowerActivations
from pyc.backends.cpu.passes.lower_attention import LowerAttention
from pyc.backends.cpu.passes.lower_layout import LowerLayout
from pyc.backends.cpu.passes.specialize_prefill import SpecializePrefill
from pyc.compiler.manager import Pass
from pyc.compiler.recipe_types import Recipe
from pyc.models.adapters import Adapter
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.fold_norm import FoldNorm
from pyc.passes.fuse_ia3 import FuseIa3
from pyc.passes.fuse_lora import FuseLora
from pyc.passes.stack_linear import StackLinear


def pipeline(recipe: Recipe, adapters: tuple[tuple[Adapter, float], ...]) -> tuple[Pass, ...]:
    """Return the passes of a build, in order; `adapters` are the recipe's, read, with their weights."""
    fuse: list[Pass] = []
    for adapter, weight in adapters:
        fuse.append(FuseLora(adapter, weight) if adapter.kind == "lora" else FuseIa3(adapter, weight))
    return (
        *fuse,
        AssignSchemes(recipe.quantize),
        FoldNorm(),
        StackLinear(),
        FuseGateUp(),
        LowerAttention(),
        LowerActivations(),
        LowerLayout(),
        SpecializePrefill(),
    )
