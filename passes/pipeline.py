"""THE pipeline: every pass that a build runs, in order. Read this first.

ingest    models.catalog.load_model                     checkpoint -> Module
fuse      fuse_lora, fuse_ia3 (one an adapter, in the recipe's order)
store     assign_schemes, fold_norm                     what every weight is stored as
stack     stack_linear                                  QKV, gate and up
lower     passes.lower: backend.passes(), each target's on the result of the above
emit      passes.emit_programs, passes.emit_artifact    Module -> model.pyca

Down to stack, passes know logical operators and no layout, and run once, whatever the targets.
"""

from __future__ import annotations

from pyc.compiler.manager import Pass
from pyc.compiler.recipe.types import Recipe
from pyc.models.adapters import Adapter
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.fold_norm import FoldNorm
from pyc.passes.fuse_ia3 import FuseIa3
from pyc.passes.fuse_lora import FuseLora
from pyc.passes.stack_linear import StackLinear

HOLDS = frozenset({"stored", "stacked"})
"""What a module has behind the pipeline, for the passes of backends to require."""


def pipeline(recipe: Recipe, adapters: tuple[tuple[Adapter, float], ...]) -> tuple[Pass, ...]:
    """Return the passes that come before those of backends; `adapters` are the recipe's, read, with their weights."""
    fuse: list[Pass] = []
    for adapter, weight in adapters:
        fuse.append(FuseLora(adapter, weight) if adapter.kind == "lora" else FuseIa3(adapter, weight))
    return (*fuse, AssignSchemes(recipe.quantize), FoldNorm(), StackLinear())
