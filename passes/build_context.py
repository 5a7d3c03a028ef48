"""What a build shares with the builds inside it: those of the gate's reference, and of what `min_tok_s` times.

All read the same descriptors, so a file that is renamed over meanwhile is not another model to one of them; and no
setting of the build is forgotten by what it does within.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.types import Recipe
from pyc.passes.build_events import BuildEvent
from pyc.passes.jobs.job import JobExecutor

Progress = Callable[[BuildEvent], None]


class InnerBuild(Protocol):
    """Builds a recipe to a file with what another build has open; `key` is a key file. Raises the errors of `build`."""

    def __call__(
        self,
        recipe: Recipe,
        context: BuildContext,
        *,
        output: Path,
        key: Path | None = None,
        progress: Progress | None = None,
    ) -> object: ...


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The files that a build has open, its cache, who does its jobs, how many threads compute beside, and what builds
    inside it: passes that a build drives ask for builds of their own, and do not know what drives them."""

    files: SourceFiles
    cache: Cache
    executor: JobExecutor
    workers: int
    inner_build: InnerBuild

    def build(self, recipe: Recipe, output: Path, key: Path, progress: Progress | None = None) -> None:
        """Build a recipe to `output`, signed by the key of the file `key`. Raises the errors of `build`."""
        self.inner_build(recipe, self, output=output, key=key, progress=progress)
