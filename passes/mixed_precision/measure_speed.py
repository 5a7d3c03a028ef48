"""How fast a choice of schemes decodes on this machine: measured by building it and running it.

The artifact has the recipe's weights rounded to nearest, programs for one row, and of the recipe's instruction sets the
one that a runtime takes on this machine; it lies in a temporary folder and has a key of its own. Programs and weights
come from the build cache where they are in it. Speed is tokens a second of one sequence behind a short context, the
best of REPEATS medians: others on the machine can only slow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from pyc.compiler.files.work_folder import work_folder
from pyc.compiler.recipe.types import ArtifactOptions, CalibrationText, Quantize, Recipe, Shapes
from pyc.passes.build_context import BuildContext
from pyc.passes.host_targets import speed_target
from pyc.runtime.artifact.trust.key_sources import write_key_file
from pyc.runtime.measure.benchmark import DecoderBench, spread
from pyc.runtime.model import load

CONTEXT = 96
STEPS = 64
REPEATS = 3


class SpeedMeter:
    """Builds and times; use `speed_meter`. `folder` gets one artifact after the other."""

    def __init__(self, recipe: Recipe, tokens: int, folder: Path, context: BuildContext) -> None:
        self._tokens, self._folder, self._context = min(CONTEXT, tokens), folder, context
        self._key = write_key_file(folder / "key")
        self._target = speed_target(recipe)

    def tokens_per_second(self, recipe: Recipe) -> float:
        """Return how many tokens a second a recipe decodes whose schemes are all named. Raises the errors of builds."""
        path = self._folder / "speed.pyca"
        self._context.build(self._small(recipe), path, self._folder / "key")
        with load(path, trust=self._key.public.text()) as model:
            bench = DecoderBench(model)
            count = max(1, min(STEPS, model.session.context - 1))
            bench.decode(count)
            return 1 / min(spread(bench.decode(count)).median for _ in range(REPEATS))

    def _small(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            folder=str(Path(recipe.folder).absolute()),
            quantize=_by_nearest(recipe.quantize),
            shapes=Shapes(context=self._tokens, tokens=(1,), batch=(1,), logits=(1,)),
            targets=(self._target,),
            artifact=ArtifactOptions(codec="none"),
            quality=None,
        )


def _by_nearest(quantize: Quantize) -> Quantize:
    """The same schemes without algorithms, which take time and leave speed as it is."""
    overrides = tuple(replace(override, algorithm=None) for override in quantize.overrides)
    calibration = CalibrationText()
    return replace(quantize, algorithm="rtn", overrides=overrides, calibration=calibration, min_tok_s=None)


@contextmanager
def speed_meter(recipe: Recipe, tokens: int, context: BuildContext) -> Iterator[SpeedMeter]:
    """Yield what times the choices of a recipe whose model serves so many `tokens`, in a build with `context`.

    Raises RecipeError where this machine's CPU runs no target.
    """
    with work_folder("eval") as folder:
        yield SpeedMeter(recipe, tokens, folder, context)
