"""Mix schemes: choose each matrix's scheme by what rounding it costs the model, within the recipe's goal.

1. Matrices come in groups (`scheme_groups`), and each has some candidates.
2. `measure_schemes` says how far rounding one group alone takes the model from the exact one on the calibration text.
   Distances of separate groups nearly add up: rounding errors of different matrices are independent, and so the terms
   that mix them vanish on average.
3. `compiler.scheme_choice` takes the least sum within the goal's bytes.
4. The mix is measured as a whole, and so are the uniform schemes that keep the goal and are predicted to come near it.
   The best of them is taken, so that a mix is never worse than a uniform scheme on that text.

The result is a recipe with an override for each matrix beside the goal. For that recipe there is nothing to choose, so
that it builds the same bytes again without measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.types import Override, Quantize, Recipe
from pyc.compiler.scheme_choice import Choice, Option, choose, loss_of, size_of, smallest
from pyc.compiler.schemes import Scheme
from pyc.models.adapters import Adapter
from pyc.passes.calibration_text import calibration_windows
from pyc.passes.check_adapters import checking_effects
from pyc.passes.interpret_text import Windows
from pyc.passes.measure_schemes import SchemeMeter
from pyc.passes.mixture import ChosenGroup, Mixture, UniformScheme
from pyc.passes.pipeline import pipeline
from pyc.passes.scheme_groups import (
    FALLBACK,
    GroupSizes,
    MatrixGroup,
    group_sizes,
    matrix_groups,
    scheme_for,
    tensor_bytes,
)
from pyc.runtime.errors import RecipeError

TOKENS = 4096
"""Of the calibration text, at most; windows are taken evenly from it."""

LARGE_WEIGHTS = 1 << 28
LARGE_TOKENS = 2048
"""For models of so many weights."""

NEAR = 2.0
"""Uniform schemes are measured whose predicted distance is at most so many times that of the mix."""

MOST_OVERRIDES = 1024
ATTEMPTS = 8

Report = Callable[[Literal["measure", "compare"], int, int], None]
"""Is told the stage of a build, and runs that are done of all."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """A recipe, its model as the checkpoint has it, and its adapters with their weights."""

    recipe: Recipe
    module: Module
    adapters: tuple[tuple[Adapter, float], ...]

    def stored(self, quantize: Quantize) -> Module:
        """Return what the common pipeline makes of the model."""
        return run_passes(self.module, pipeline(replace(self.recipe, quantize=quantize), self.adapters))


def mix_schemes(
    ingested: Ingested, files: SourceFiles, cache: Cache, workers: int, report: Report
) -> Mixture | None:
    """Return what is chosen for a recipe with a goal; None where there is nothing to choose.

    Raises RecipeError for a goal that cannot be kept, and the errors of a calibration text.
    """
    found = problem(ingested)
    if found is None or all(len(options) == 1 for options in found.candidates()):
        if found is not None:
            found.budget_bytes()
        return None
    return _Mixer(found, files, cache, workers, report).mixture()


@dataclass(frozen=True, slots=True)
class Problem:
    """What there is to choose from: known from headers alone."""

    ingested: Ingested
    groups: tuple[MatrixGroup, ...]
    sizes: GroupSizes

    @property
    def quantize(self) -> Quantize:
        """What the recipe says."""
        return self.ingested.recipe.quantize

    def candidates(self) -> tuple[tuple[str, ...], ...]:
        """Return the schemes of each group."""
        return tuple(group.candidates for group in self.groups)

    def options(self, distances: Mapping[tuple[str, ...], Sequence[float]] | None = None) -> list[list[Option]]:
        """Return the options of each group; without distances none is known to cost anything."""
        return [
            [
                Option(name, self.sizes.of[group.names][name], distances[group.names][index] if distances else 0.0)
                for index, name in enumerate(group.candidates)
            ]
            for group in self.groups
        ]

    def budget_bytes(self) -> int:
        """Return the bytes that matrices may take. Raises RecipeError when the least exceeds them."""
        goal = self.quantize.goal()
        assert goal is not None
        name, value = goal
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

    def resolved(self, schemes: Sequence[str]) -> Recipe:
        """Return the recipe with an override for each matrix that had none."""
        chosen = [
            Override(match=name, scheme=scheme)
            for group, scheme in zip(self.groups, schemes, strict=True)
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
    quarter what rounding costs. Raises RecipeError for a number of bytes that is too small."""
    found = problem(ingested)
    if found is None:
        return ingested.recipe
    budget = found.budget_bytes()
    items = [
        [_guess(option, group.weights) for option in options]
        for group, options in zip(found.groups, found.options(), strict=True)
    ]
    guess = choose(items, budget)
    assert guess is not None
    return found.resolved([options[index].scheme for options, index in zip(items, guess, strict=True)])


def _guess(option: Option, weights: int) -> Option:
    return Option(option.scheme, option.size_bytes, weights * 4.0 ** (-8 * option.size_bytes / weights))


def problem(ingested: Ingested) -> Problem | None:
    """Return what there is to choose; None for a recipe that names its schemes."""
    recipe, module = ingested.recipe, ingested.module
    if recipe.quantize.goal() is None:
        return None
    groups = matrix_groups(module, recipe.quantize, [target.backend for target in recipe.targets])

    def stored(schemes: Mapping[str, str]) -> Module:
        chosen = tuple(Override(match=name, scheme=scheme) for name, scheme in schemes.items())
        return ingested.stored(replace(recipe.quantize, overrides=(*recipe.quantize.overrides, *chosen)))

    return Problem(ingested, groups, group_sizes(module, groups, stored))


class _Mixer:
    def __init__(self, found: Problem, files: SourceFiles, cache: Cache, workers: int, report: Report) -> None:
        self._problem, self._report = found, report
        ingested = found.ingested
        kept = replace(found.quantize, overrides=(), embeddings="none", size_bytes=None, bits_per_weight=None)
        passes = pipeline(replace(ingested.recipe, quantize=kept), ingested.adapters)
        module = run_passes(ingested.module, passes[:-1], observe=checking_effects(files, lambda name, module: None))
        self._module = module
        windows = calibration_windows(ingested.recipe, module, files)
        self._done = self._total = 0
        self._stage: Literal["measure", "compare"] = "measure"
        self._meter = SchemeMeter(module, _fewer(windows, found.groups), files, cache, workers, self._advance)

    def _advance(self, runs: int) -> None:
        self._done += runs
        self._report(self._stage, self._done, self._total)

    def _begin(self, stage: Literal["measure", "compare"], total: int) -> None:
        self._stage, self._done, self._total = stage, 0, total
        self._report(stage, 0, total)

    def mixture(self) -> Mixture:
        """Measure, choose and compare."""
        found = self._problem
        budget = found.budget_bytes()
        items = found.options(self._distances())
        mix, allowed = self._choice(items, budget)
        measured, uniform = self._compared(items, mix, allowed)
        is_uniform = uniform is not None and uniform[1] < measured
        if is_uniform:
            assert uniform is not None
            mix, measured = uniform
        return self._described(items, mix, measured, uniform, is_uniform=is_uniform)

    def _distances(self) -> dict[tuple[str, ...], list[float]]:
        groups = [group.names for group in self._problem.groups]
        schemes = {
            group.names: [self._scheme(group, name) for name in group.candidates] for group in self._problem.groups
        }
        self._begin("measure", len(groups))
        return self._meter.distances(groups, schemes)

    def _scheme(self, group: MatrixGroup, candidate: str) -> Scheme:
        return scheme_for(self._module, self._problem.quantize, group.names[0], candidate)

    def _choice(self, items: Sequence[Sequence[Option]], budget: int) -> tuple[Choice, int]:
        """Return the choice whose tensors keep the budget, and that; a stack that it divides is padded more."""
        allowed = budget
        for _ in range(ATTEMPTS):
            mix = choose(items, allowed)
            assert mix is not None
            excess = self._matrix_bytes(items, mix) - budget
            if excess <= 0:
                return mix, allowed
            allowed = max(allowed - excess, size_of(items, smallest(items)))
        return smallest(items), allowed

    def _matrix_bytes(self, items: Sequence[Sequence[Option]], mix: Choice) -> int:
        """Return the bytes of the matrices' tensors of what is built."""
        resolved = self._problem.resolved([options[index].scheme for options, index in zip(items, mix, strict=True)])
        tensors = tensor_bytes(self._problem.ingested.stored(resolved.quantize))
        return sum(size_bytes for _, size_bytes in tensors) - self._problem.sizes.others

    def _compared(
        self, items: Sequence[Sequence[Option]], mix: Choice, allowed: int
    ) -> tuple[float, tuple[Choice, float] | None]:
        """Return the measured distance of the mix, and the best uniform choice with its own."""
        most = NEAR * loss_of(items, mix)
        fitting = sorted(
            (choice for choice in self._problem.uniforms() if size_of(items, choice) <= allowed),
            key=lambda choice: loss_of(items, choice),
        )
        near = [choice for choice in fitting if loss_of(items, choice) <= most] or fitting[:1]
        self._begin("compare", 1 + len(near))
        measured = self._measured(mix)
        compared = [(choice, self._measured(choice)) for choice in near]
        return measured, min(compared, key=lambda pair: pair[1], default=None)

    def _measured(self, choice: Choice) -> float:
        schemes = {
            name: self._scheme(group, group.candidates[index])
            for group, index in zip(self._problem.groups, choice, strict=True)
            for name in group.names
        }
        return self._meter.distance(schemes)

    def _described(
        self,
        items: Sequence[Sequence[Option]],
        mix: Choice,
        measured: float,
        uniform: tuple[Choice, float] | None,
        *,
        is_uniform: bool,
    ) -> Mixture:
        found, goal = self._problem, self._problem.quantize.goal()
        assert goal is not None
        chosen = [options[index] for options, index in zip(items, mix, strict=True)]
        groups = tuple(
            ChosenGroup(group.names, option.scheme, option.size_bytes, group.weights, option.loss, group.is_fixed)
            for group, option in zip(found.groups, chosen, strict=True)
        )
        others = found.sizes.others
        beside = None
        if uniform is not None:
            names = found.uniforms()[uniform[0]]
            beside = UniformScheme(*names, size_of(items, uniform[0]) + others, uniform[1])
        return Mixture(
            goal=goal[0],
            wanted=goal[1],
            groups=groups,
            size_bytes=sum(option.size_bytes for option in chosen) + others,
            metric=self._meter.metric,
            positions=self._meter.positions,
            predicted=loss_of(items, mix),
            measured=measured,
            uniform=beside,
            is_uniform=is_uniform,
            recipe=found.resolved([option.scheme for option in chosen]),
        )


def _fewer(windows: Windows, groups: Sequence[MatrixGroup]) -> Windows:
    """Return at most TOKENS of the text, in windows that are taken evenly."""
    count, length = windows.ids.shape
    most = LARGE_TOKENS if sum(group.weights for group in groups) >= LARGE_WEIGHTS else TOKENS
    wanted = max(1, min(count, most // length))
    return Windows(windows.ids[[index * count // wanted for index in range(wanted)]], windows.digest)
