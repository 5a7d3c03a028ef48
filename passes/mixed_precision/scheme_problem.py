"""What there is to choose for a recipe with a goal, from headers alone: groups of matrices, candidates and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pyc.compiler.ir import Module
from pyc.compiler.manager import run_passes
from pyc.compiler.operators import OPERATORS
from pyc.compiler.recipe.types import Override, Quantize, Recipe
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.scheme_choice import Choice, Option, choose, size_of, smallest
from pyc.models.adapters import Adapter
from pyc.passes.host_targets import speed_target
from pyc.passes.mixed_precision.scheme_groups import FALLBACK, GroupSizes, MatrixGroup, group_sizes, matrix_groups
from pyc.passes.pipeline import fuse_passes, pipeline
from pyc.runtime.errors import RecipeError

MOST_OVERRIDES = 1024

GUESSED_BITS = 4.5
"""Bits a weight of a guess for a goal that is not bytes."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """A recipe, its model as the checkpoint has it, and its adapters with their weights."""

    recipe: Recipe
    module: Module
    adapters: tuple[tuple[Adapter, float], ...]

    def fused(self) -> Module:
        """Return the model with its adapters in its weights: the matrices that a build gives schemes to."""
        return run_passes(self.module, fuse_passes(self.recipe, self.adapters))

    def stored(self, quantize: Quantize) -> Module:
        """Return what the common pipeline makes of the model."""
        return run_passes(self.module, pipeline(replace(self.recipe, quantize=quantize), self.adapters))


@dataclass(frozen=True, slots=True)
class Problem:
    """What there is to choose from: known from headers alone. `module` is the model with its adapters fused, whose
    matrices the groups are."""

    ingested: Ingested
    module: Module
    groups: tuple[MatrixGroup, ...]
    sizes: GroupSizes

    @property
    def quantize(self) -> Quantize:
        """What the recipe says."""
        return self.ingested.recipe.quantize

    def candidates(self) -> tuple[tuple[str, ...], ...]:
        """Return the schemes of each group."""
        return tuple(group.candidates for group in self.groups)

    def leaves_a_choice(self) -> bool:
        """Whether some group has more than one scheme to choose from."""
        return any(len(schemes) > 1 for schemes in self.candidates())

    def options(self, distances: Mapping[tuple[str, ...], Sequence[float]] | None = None) -> list[list[Option]]:
        """Return the options of each group; without distances none is known to cost anything."""
        return [
            [
                Option(name, self.sizes.of[group.names][name], distances[group.names][index] if distances else 0.0)
                for index, name in enumerate(group.candidates)
            ]
            for group in self.groups
        ]

    def check(self) -> None:
        """Raise RecipeError for a goal of bytes that is less than the least, for one that this kind of model has not,
        and for a speed that cannot be timed on this machine; where nothing is left to choose, none is timed."""
        name, _ = self.goal
        if name in ("size_bytes", "bits_per_weight"):
            self.budget_bytes()
        elif self.ingested.module.info.kind != "decoder":
            raise RecipeError(
                f"quantize.{name}: {self.ingested.module.info.architecture} is an encoder, expected size_bytes or "
                f"bits_per_weight; take {name} out"
            )
        elif name == "min_tok_s" and self.leaves_a_choice():
            speed_target(self.ingested.recipe)

    @property
    def goal(self) -> tuple[str, float]:
        """The key that schemes are chosen by, and its value."""
        goal = self.quantize.goal()
        assert goal is not None
        return goal

    def budget_bytes(self) -> int:
        """Return the bytes that matrices may take by a goal of bytes. Raises RecipeError when the least exceeds it."""
        name, value = self.goal
        items = self.options()
        least = size_of(items, smallest(items))
        weights = sum(group.weights for group in self.groups)
        budget = int(value) - self.sizes.others if name == "size_bytes" else int(value * weights / 8)
        if least > budget:
            total = least + self.sizes.others
            got, needed = (
                (f"{int(value):,}", f"{total:,}, what tensors take with the smallest scheme for each matrix")
                if name == "size_bytes"
                else (f"{value:g}", f"{8 * least / weights:.4f}, what the smallest scheme for each matrix takes")
            )
            raise RecipeError(f"quantize.{name}: got {got}, expected at least {needed}; raise it")
        return budget

    def read_by_a_token(self, items: Sequence[Sequence[Option]]) -> list[list[Option]]:
        """Return options whose bytes are those that decoding reads: of a table that is only looked up, next to none."""
        graph = self.module.graph
        found: list[list[Option]] = []
        for group, options in zip(self.groups, items, strict=True):
            readers = [reader for name in group.names for reader in weight_readers(graph, name)]
            is_product = any(OPERATORS[reader.kind].role == "matmul" for reader in readers)
            found.append([each if is_product else Option(each.scheme, 0, each.loss) for each in options])
        return found

    def resolved(self, choice: Choice) -> Recipe:
        """Return the recipe with an override for each matrix that had none."""
        chosen = [
            Override(match=name, scheme=group.candidates[index])
            for group, index in zip(self.groups, choice, strict=True)
            for name in group.names
            if not group.is_fixed
        ]
        overrides = (*self.quantize.overrides, *chosen)
        if len(overrides) > MOST_OVERRIDES:
            raise RecipeError(
                f"quantize: schemes for {len(chosen)} matrices make {len(overrides)} overrides, expected at most "
                f"{MOST_OVERRIDES}; name a scheme instead"
            )
        return replace(self.ingested.recipe, quantize=replace(self.quantize, overrides=overrides))

    def uniform(self, scheme: str, embeddings: str) -> Choice:
        """Return the choice of one scheme for all matrices, and one for embeddings; where it cannot be, FALLBACK."""
        found: list[int] = []
        for group in self.groups:
            wanted = embeddings if group.is_embedding else scheme
            names = group.candidates
            found.append(0 if group.is_fixed else names.index(wanted if wanted in names else FALLBACK))
        return tuple(found)

    def uniforms(self) -> dict[Choice, tuple[str, str]]:
        """Return every uniform choice and the schemes that it is of: one for all, or embeddings in int8."""
        names = dict.fromkeys(name for group in self.groups if not group.is_fixed for name in group.candidates)
        found: dict[Choice, tuple[str, str]] = {}
        for scheme in names:
            for embeddings in (scheme, FALLBACK):
                found.setdefault(self.uniform(scheme, embeddings), (scheme, embeddings))
        return found


def guessed_recipe(ingested: Ingested) -> Recipe:
    """Return a recipe with a goal as a build might resolve it, from headers alone: every bit a weight more is taken to
    quarter what rounding costs. Raises RecipeError as `Problem.check`."""
    found = problem(ingested)
    if found is None:
        return ingested.recipe
    found.check()
    items = [
        [_guess(option, group.weights) for option in options]
        for group, options in zip(found.groups, found.options(), strict=True)
    ]
    if found.goal[0] in ("size_bytes", "bits_per_weight"):
        budget = found.budget_bytes()
    else:
        weights = sum(group.weights for group in found.groups)
        budget = max(int(GUESSED_BITS * weights / 8), size_of(items, smallest(items)))
    guess = choose(items, budget)
    assert guess is not None
    return found.resolved(guess)


def _guess(option: Option, weights: int) -> Option:
    return Option(option.scheme, option.size_bytes, weights * 4.0 ** (-8 * option.size_bytes / weights))


def problem(ingested: Ingested) -> Problem | None:
    """Return what there is to choose; None for a recipe that names its schemes."""
    recipe = ingested.recipe
    if recipe.quantize.goal() is None:
        return None
    module = ingested.fused()
    groups = matrix_groups(module, recipe.quantize, [target.backend for target in recipe.targets])

    def stored(schemes: Mapping[str, str]) -> Module:
        chosen = tuple(Override(match=name, scheme=scheme) for name, scheme in schemes.items())
        return ingested.stored(replace(recipe.quantize, overrides=(*recipe.quantize.overrides, *chosen)))

    return Problem(ingested, module, groups, group_sizes(module, groups, stored))
