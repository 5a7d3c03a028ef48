"""What a build stores of each group of matrices under each of its schemes, and the models that distances are taken in.

The passes of the pipeline say so: the gain of a norm goes into matrices that are quantized, is rounded with them, and
stays apart from a matrix that is stored in 16 bits, and from all that read a norm beside one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyc.compiler.ir import Module
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.types import Quantize
from pyc.compiler.scheme_choice import Choice
from pyc.compiler.weights import Stored
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.mixed_precision.measure_schemes import Group, StoredGroup
from pyc.passes.mixed_precision.scheme_problem import Problem
from pyc.passes.pipeline import store_passes
from pyc.passes.stack_linear import StackLinear


@dataclass(frozen=True, slots=True)
class StoredGroups:
    """Groups as a build stores them, by their candidates.

    `folded` is the model with all gains in the matrices behind them that some scheme has there, and nothing stacked.
    """

    folded: Module
    of: Mapping[Group, tuple[StoredGroup, ...]]


def stored_groups(found: Problem) -> StoredGroups:
    """Return what a build stores of groups. Under a scheme of a group all others have it too that can, as those have
    that read the same norm."""
    groups = found.groups
    modules = {
        candidate: _stored(found, tuple(_index(group.candidates, candidate) for group in groups))
        for candidate in dict.fromkeys(name for names in found.candidates() for name in names)
    }
    of: dict[Group, tuple[StoredGroup, ...]] = {}
    folding: list[int] = []
    for group in groups:
        stored = [_matrices(modules[candidate], group.names) for candidate in group.candidates]
        folding.append(next((index for index, each in enumerate(stored) if _is_folded(found.module, each)), 0))
        of[group.names] = tuple(stored)
    return StoredGroups(_stored(found, tuple(folding)), of)


def exact_module(found: Problem) -> Module:
    """Return the model that distances are from: nothing is rounded, gains stand apart, products are stacked as those of
    a build are that gives all matrices one scheme. Where that loses nothing, its distance is 0 to the last bit."""
    store = AssignSchemes(Quantize(scheme="f32", embeddings="f32"))
    return run_passes(found.module, (store, StackLinear()))


def _stored(found: Problem, choice: Choice) -> Module:
    return run_passes(found.module, store_passes(found.resolved(choice)))


def _index(candidates: tuple[str, ...], candidate: str) -> int:
    return candidates.index(candidate) if candidate in candidates else 0


def _matrices(module: Module, names: Group) -> StoredGroup:
    weights = {name: module.weights[name] for name in names}
    return {name: weight for name, weight in weights.items() if isinstance(weight, Stored)}


def _is_folded(fused: Module, stored: StoredGroup) -> bool:
    return any(weight.base != fused.weights[name] for name, weight in stored.items())
