"""Mix schemes: choose each matrix's scheme by what rounding it costs the model, within the recipe's goal.

1. Matrices come in groups (`scheme_groups`), and each has some candidates.
2. `measure_schemes` says how far rounding one group alone takes the model from the exact one on the calibration text.
   Distances of separate groups nearly add up: rounding errors of different matrices are independent, and so the terms
   that mix them vanish on average.
3. `compiler.scheme_choice` takes the least sum within the goal's bytes.
4. The mix is measured as a whole, and so are the uniform schemes that keep the goal and are predicted to come near it.
   The best of them is taken, so that a mix is never worse than a uniform scheme on that text. What is measured is the
   module that the build makes of the choice, through its passes.

For a limit of the distance the choices that are optimal for their bytes are searched for the first that keeps it, as
measured. For a speed the smallest and the largest choice are built and timed; what a byte of weights costs between them
says how many a token may read, and that choice is built and timed, too.

With an algorithm that calibrates, both groups and wholes are rounded by it, and measured on other tokens than they are
calibrated by: on its own text GPTQ makes few bits look twice as good as they are. Of groups, scaled channels and
sketches are left out, which need the rest of the model; `yaqa` is GPTQ there.

The result is a recipe with an override for each matrix beside the goal. For that recipe there is nothing to choose, so
that it builds the same bytes again without measuring.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pyc.compiler.files.work_folder import work_folder
from pyc.compiler.ir import Module
from pyc.compiler.manager import run_passes
from pyc.compiler.scheme_choice import Choice, Option, choose, fewest, loss_of, path, size_of, smallest
from pyc.passes.adapters.check_adapters import checking_effects
from pyc.passes.adapters.compute_prefix import compute_prefix
from pyc.passes.build_context import BuildContext
from pyc.passes.calibration.calibrate import VERSION as CALIBRATION_VERSION
from pyc.passes.calibration.calibrate import calibrate
from pyc.passes.calibration.calibration_text import calibration_windows
from pyc.passes.calibration.imported_importance import importance_source, imported_importance
from pyc.passes.calibration.matrix_algorithms import scaled_gains_bytes
from pyc.passes.mixed_precision.measure_schemes import SchemeMeter
from pyc.passes.mixed_precision.measured_windows import windows_to_measure
from pyc.passes.mixed_precision.mixture import ChosenGroup, Mixture, UniformScheme
from pyc.passes.mixed_precision.scheme_groups import tensor_bytes
from pyc.passes.mixed_precision.scheme_problem import Ingested, Problem, problem
from pyc.passes.mixed_precision.stored_groups import exact_module, stored_groups
from pyc.passes.pipeline import fuse_passes
from pyc.runtime.errors import RecipeError

logger = logging.getLogger(__name__)

NEAR = 2.0
"""Uniform schemes are measured whose predicted distance is at most so many times that of the mix."""

MOST_CALIBRATED = 3
"""Of uniform schemes, those predicted best, are measured where each has to be calibrated for that."""

DISTANCE_ATTEMPTS = 6
DISTANCE_TOLERANCE = 0.02
"""A distance so little less than the limit is near enough."""

SPEED_ATTEMPTS = 4
PLAIN = ("int4-g32", "int8")
SPEED_MARGIN = 0.05
"""Of the bytes between two choices, taken off at each attempt after one that was too slow."""
SPEED_TOLERANCE = 0.03
"""A choice so little faster than asked for is good enough."""
SPEED_LEFT = 0.15
"""Where one is so much faster, what has more bytes may have been too slow by chance: all are timed once more."""

ATTEMPTS = 8

Report = Callable[[Literal["measure", "compare"], int, int], None]
"""Is told the stage of a build, and runs that are done of all."""


Items = Sequence[Sequence[Option]]
"""The options of each group."""


def mix_schemes(ingested: Ingested, context: BuildContext, report: Report) -> Mixture | None:
    """Return what is chosen for a recipe with a goal, of a build with `context`; None where there is no choice.

    Raises RecipeError for a goal that cannot be kept, and the errors of a calibration text.
    """
    found = problem(ingested)
    if found is not None:
        found.check()
    if found is None or not found.leaves_a_choice():
        return None
    return _Mixer(found, context, report).mixture()


@dataclass(frozen=True, slots=True)
class _Found:
    """A choice that keeps the goal, and the best uniform one that does, each with its measured distance."""

    choice: Choice
    measured: float
    uniform: tuple[Choice, float] | None
    is_uniform: bool
    tokens_per_second: tuple[float, float] | None = None


class _Mixer:
    def __init__(self, found: Problem, context: BuildContext, report: Report) -> None:
        self._problem, self._report, self._context = found, report, context
        files, cache = context.files, context.cache
        ingested = found.ingested
        fuse = fuse_passes(ingested.recipe, ingested.adapters)
        run_passes(ingested.module, fuse, observe=checking_effects(ingested.adapters, files))
        self._stored = stored_groups(found)
        self._exact = exact = compute_prefix(exact_module(found), ingested.adapters, files)
        source = importance_source(ingested.recipe)
        self._importance_digest = "" if source is None else files.digest(source.path)
        self._windows = calibration_windows(ingested.recipe, exact, files, cache)
        self._is_calibrated = found.quantize.calibrates()
        self._done = self._total = 0
        self._stage: Literal["measure", "compare"] = "measure"
        self._distance: dict[Choice, float] = {}
        measured, self._windows, calibrated_by = windows_to_measure(found, exact, self._windows, files)
        self._meter = SchemeMeter(
            dataclasses.replace(self._stored.folded, prefix=exact.prefix),
            exact,
            measured,
            files,
            cache,
            context.workers,
            self._advance,
            calibrated_by=calibrated_by,
            algorithm_of=lambda name: found.quantize.algorithm_of(name) or found.quantize.algorithm,
        )

    def _advance(self, runs: int) -> None:
        self._done += runs
        self._report(self._stage, min(self._done, self._total), self._total)

    def _begin(self, stage: Literal["measure", "compare"], total: int) -> None:
        self._stage, self._done, self._total = stage, 0, total
        self._report(stage, 0, total)

    def mixture(self) -> Mixture:
        """Measure, choose and compare."""
        name, value = self._problem.goal
        items = self._problem.options(self._distances())
        if name == "max_kl":
            found = self._by_distance(items, value)
        elif name == "min_tok_s":
            found = self._by_speed(items, value)
        else:
            found = self._by_bytes(items)
        return self._described(items, found)

    def _distances(self) -> dict[tuple[str, ...], list[float]]:
        self._begin("measure", len(self._stored.of))
        return self._meter.distances(self._stored.of)

    # --- goals

    def _by_bytes(self, items: Items) -> _Found:
        """The least distance within the recipe's bytes; a stack that the choice divides is padded more."""
        budget = allowed = self._problem.budget_bytes()
        mix = smallest(items)
        for _ in range(ATTEMPTS):
            chosen = choose(items, allowed)
            assert chosen is not None
            excess = self._tensor_bytes(chosen) - self._problem.sizes.others - budget
            if excess <= 0:
                mix = chosen
                break
            allowed = max(allowed - excess, size_of(items, smallest(items)))
        return self._better(items, mix, [each for each in self._problem.uniforms() if size_of(items, each) <= allowed])

    def _tensor_bytes(self, choice: Choice) -> int:
        """Return the bytes of all tensors of what is built, gains that scaled channels give to norms among them."""
        stored = self._problem.ingested.stored(self._problem.resolved(choice).quantize)
        gains_bytes = scaled_gains_bytes(stored, self._problem.quantize.algorithm)
        return gains_bytes + sum(size_bytes for _, size_bytes in tensor_bytes(stored))

    def _by_distance(self, items: Items, limit: float) -> _Found:
        """The fewest bytes whose measured distance keeps a limit: distances are taken to be in proportion to what is
        predicted, as they were of the last choice."""
        self._begin("compare", 2 + DISTANCE_ATTEMPTS)
        mix = path(items)[-1]
        least = self._measured(mix)
        if least > limit:
            raise RecipeError(
                f"quantize.max_kl: got {limit:g}, expected at least {least:.3g}, what the largest scheme for each "
                "matrix has on the calibration text; raise it"
            )
        factor = 1.0
        for _ in range(DISTANCE_ATTEMPTS):
            chosen = fewest(items, limit / factor)
            if chosen is None or chosen == mix:
                break
            measured = self._measured(chosen)
            if measured <= limit:
                if size_of(items, chosen) < size_of(items, mix):
                    mix = chosen
                if measured >= limit * (1 - DISTANCE_TOLERANCE):
                    break
            predicted = loss_of(items, chosen)
            if not measured or not predicted:
                break  # nothing that others are in proportion to
            factor = measured / predicted * (1 if measured <= limit else 1 + DISTANCE_TOLERANCE / 2)
        near = [each for each in self._problem.uniforms() if loss_of(items, each) <= NEAR * limit / factor]
        near.sort(key=lambda each: size_of(items, each))
        kept = next(((each, self._measured(each)) for each in near if self._measured(each) <= limit), None)
        is_uniform = kept is not None and size_of(items, kept[0]) < size_of(items, mix)
        if kept is not None and is_uniform:
            mix = kept[0]
        return _Found(mix, self._measured(mix), kept, is_uniform)

    def _by_speed(self, items: Items, wanted: float) -> _Found:
        """The least distance at which decoding is fast enough, as timed. What runs a model is imported for it alone."""
        from pyc.passes.mixed_precision.measure_speed import speed_meter

        reads = self._problem.read_by_a_token(items)
        self._begin("compare", 2 + SPEED_ATTEMPTS)
        ingested = self._problem.ingested
        with speed_meter(ingested.recipe, self._exact.usable_context, self._context) as meter:

            def seconds(choice: Choice) -> float:
                elapsed_s = 1 / meter.tokens_per_second(self._problem.resolved(choice))
                self._advance(1)
                return elapsed_s

            choice, elapsed_s, predicted_s = _within(reads, self._plain(), 1 / wanted, seconds)
            if elapsed_s > 1 / wanted:
                raise RecipeError(
                    f"quantize.min_tok_s: got {wanted:g}, expected at most {1 / elapsed_s:.4g}, the most that was "
                    "timed on this machine; lower it"
                )
            if elapsed_s < (1 - SPEED_LEFT) / wanted and choice != path(reads)[-1]:
                logger.warning(
                    "quantize.min_tok_s: %.4g tokens a second are timed where %g are asked for, and what has more "
                    "bytes was too slow; on a machine at rest a build may find a mix of less loss",
                    1 / elapsed_s,
                    wanted,
                )
            read_bytes = size_of(reads, choice)
            found = self._better(
                items, choice, [each for each in self._problem.uniforms() if size_of(reads, each) <= read_bytes]
            )
            if found.is_uniform:
                uniform_s = seconds(found.choice)
                if uniform_s > 1 / wanted:
                    found = _Found(choice, self._measured(choice), None, is_uniform=False)
                else:
                    elapsed_s = uniform_s
        return dataclasses.replace(found, tokens_per_second=(1 / elapsed_s, 1 / predicted_s))

    def _plain(self) -> list[Choice]:
        """Uniform choices whose kernels do least, which are faster than fewer bytes where these are not what counts."""
        return [self._problem.uniform(scheme, scheme) for scheme in PLAIN]

    def _better(self, items: Items, mix: Choice, uniforms: Sequence[Choice]) -> _Found:
        """The mix, or the best of uniform choices that keep the goal, too."""
        most = NEAR * loss_of(items, mix)
        ordered = sorted(uniforms, key=lambda choice: loss_of(items, choice))
        near = [choice for choice in ordered if loss_of(items, choice) <= most] or ordered[:1]
        near = near[:MOST_CALIBRATED] if self._is_calibrated else near
        self._begin("compare", 1 + len(near))
        measured = self._measured(mix)
        best = min(((choice, self._measured(choice)) for choice in near), key=lambda pair: pair[1], default=None)
        if best is not None and best[1] < measured:
            return _Found(*best, best, is_uniform=True)
        return _Found(mix, measured, best, is_uniform=False)

    def _measured(self, choice: Choice) -> float:
        """Return the distance of what the build makes of a choice."""
        if choice not in self._distance:
            stored = self._problem.ingested.stored(self._problem.resolved(choice).quantize)
            quantize = self._problem.quantize
            given = quantize.algorithm, quantize.migration, self._importance_digest
            by = (CALIBRATION_VERSION, self._windows.key, *given) if self._is_calibrated else ()
            self._distance[choice] = self._meter.distance_of(stored, lambda: self._made(stored), *by)
        return self._distance[choice]

    @contextmanager
    def _made(self, stored: Module) -> Iterator[Module]:
        """What the build makes of a stored module; codes that it calibrates stay in the build cache, and their file
        goes at once."""
        recipe, quantize = self._problem.ingested.recipe, self._problem.quantize
        context, files = self._context, self._context.files
        module = compute_prefix(stored, self._problem.ingested.adapters, files)
        if not self._is_calibrated:
            yield module
            return
        with work_folder("calibration") as folder, files.owning(folder):
            importance = imported_importance(recipe, module, files)
            given = quantize.algorithm, quantize.migration, importance
            yield calibrate(
                module,
                self._windows,
                files,
                context.cache,
                folder,
                lambda weights: None,
                *given,
                context.executor,
                context.workers,
            )

    def _described(self, items: Items, found: _Found) -> Mixture:
        problem, (name, value) = self._problem, self._problem.goal
        chosen = [options[index] for options, index in zip(items, found.choice, strict=True)]
        groups = tuple(
            ChosenGroup(group.names, option.scheme, option.size_bytes, group.weights, option.loss, group.is_fixed)
            for group, option in zip(problem.groups, chosen, strict=True)
        )
        beside = None
        if found.uniform is not None:
            names = problem.uniforms()[found.uniform[0]]
            beside = UniformScheme(*names, self._tensor_bytes(found.uniform[0]), found.uniform[1])
        return Mixture(
            goal=name,
            wanted=value,
            groups=groups,
            size_bytes=self._tensor_bytes(found.choice),
            metric=self._meter.metric,
            positions=self._meter.positions,
            predicted=loss_of(items, found.choice),
            measured=found.measured,
            uniform=beside,
            is_uniform=found.is_uniform,
            tokens_per_second=found.tokens_per_second,
            recipe=problem.resolved(found.choice),
        )


def _within(
    reads: Items, plain: Sequence[Choice], limit_s: float, seconds: Callable[[Choice], float]
) -> tuple[Choice, float, float]:
    """Return what `_searched` does, or, where that is much faster than asked for, what it does once more: machines are
    shared, and a choice that was too slow once may not be so again."""
    first = _searched(reads, plain, limit_s, seconds)
    if first[1] >= limit_s * (1 - SPEED_LEFT) or first[0] == path(reads)[-1]:
        return first
    again = _searched(reads, plain, limit_s, seconds)
    return max((first, again), key=lambda found: (found[1] <= limit_s, size_of(reads, found[0])))


def _searched(
    reads: Items, plain: Sequence[Choice], limit_s: float, seconds: Callable[[Choice], float]
) -> tuple[Choice, float, float]:
    """Return the choice of most bytes whose token takes at most `limit_s`, its measured and its predicted seconds;
    where no token is so fast, the fastest choice.

    Seconds are taken to grow with bytes as they do between the choices nearest to the limit that were measured. `plain`
    are choices that are tried where that of fewest bytes is too slow.
    """
    choices = path(reads)
    low, high = ((choice, seconds(choice)) for choice in (choices[0], choices[-1]))
    if high[1] <= limit_s:
        return *high, high[1]
    if low[1] > limit_s:
        low = min([low, *((choice, seconds(choice)) for choice in plain)], key=lambda pair: pair[1])
    predicted_s = low[1]
    if low[1] > limit_s or size_of(reads, low[0]) >= size_of(reads, high[0]):
        return *low, predicted_s
    for attempt in range(SPEED_ATTEMPTS):
        least, most = (size_of(reads, choice) for choice, _ in (low, high))
        share = (limit_s - low[1]) / (high[1] - low[1]) * (1 - SPEED_MARGIN * attempt)
        chosen = choose(reads, int(least + share * (most - least)))
        assert chosen is not None
        if chosen == low[0]:
            break
        taken_s = seconds(chosen)
        if taken_s > limit_s:
            high = (chosen, taken_s)
            continue
        position = (size_of(reads, chosen) - least) / (most - least)
        predicted_s = low[1] + position * (high[1] - low[1])
        low = (chosen, taken_s)
        if taken_s >= limit_s * (1 - SPEED_TOLERANCE):
            break
    return *low, predicted_s
