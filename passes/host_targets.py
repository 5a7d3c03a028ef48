"""Which of a recipe's targets this machine runs: known from the recipe alone, before anything is built."""

from __future__ import annotations

import platform
from collections.abc import Iterable

from msgspec.structs import replace

from pyc.backends.host_machine import engine_lacks, lacks_here
from pyc.compiler.recipe.types import ISAS, Recipe, Target
from pyc.runtime.errors import RecipeError
from pyc.runtime.executors.cpu.features import cpu_model


def host_target(targets: Iterable[Target], purpose: str, otherwise: str, beside: str = "") -> Target:
    """Return a target with the one instruction set, of those that `targets` name, which a runtime takes on this CPU.

    Raises RecipeError where this CPU runs none of them: `purpose` says what has to run here, `otherwise` what else one
    can do than to add a target, and `beside` why no other engine does it.
    """
    machine = platform.machine()
    mine = [target for target in targets if target.backend == "cpu" and target.arch == machine]
    if not mine:
        none = f"no target is for its CPU{beside}"
        raise RecipeError(f"{purpose}, on {machine}, and {none}; add one for it, or {otherwise}")
    lacks = lacks_here(name for target in mine for name in target.isa)
    chosen = next((name for name, lacking in lacks.items() if not lacking), None)
    if chosen is not None:
        return replace(mine[0], isa=(chosen,))
    needs = "; ".join(f"{name} needs {lacking}" for name, lacking in lacks.items())
    raise RecipeError(
        f"{purpose}, and this CPU ({cpu_model()}, {machine}) runs no target's isa: {needs}{beside}; add "
        f"{ISAS[machine][0]}, which every {machine} runs, to targets.isa, or {otherwise}"
    )


def require_target_here(targets: Iterable[Target], purpose: str, otherwise: str) -> None:
    """Raise RecipeError where this machine runs none of the targets, on its CPU or another engine: `purpose` and
    `otherwise` are as in `host_target`."""
    lacks: dict[str, str] = {}
    for target in (each for each in targets if each.backend != "cpu"):
        for isa in target.isa:
            lacking = engine_lacks(target.backend, isa)
            if not lacking:
                return
            lacks[target.backend] = lacking
    beside = "".join(f", and {backend} needs {lacking}" for backend, lacking in lacks.items())
    host_target(targets, purpose, otherwise, beside)


def speed_target(recipe: Recipe) -> Target:
    """Return the target whose program is timed for `min_tok_s`. Raises RecipeError where this CPU runs no target."""
    purpose = "quantize.min_tok_s: decoding is timed where the artifact is built"
    return host_target(recipe.targets, purpose, "take another goal")
