"""The files that a report or an evaluation reads, so that its page never replaces them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyc.compiler.recipe.types import Recipe

_SUFFIXES = (".jinja", ".json", ".model", ".safetensors", ".txt")
"""What is read of a checkpoint or an adapter; a page of an earlier run may lie beside it."""


def reference_files(source: str, recipe: Recipe | None) -> Iterator[Path]:
    """Yield, before they are read, the files of a reference: the artifact, or the recipe, what it names, and those of
    its checkpoint, tokenizer and adapters."""
    from pyc.passes.driver.build_output import named_files
    from pyc.runtime.sources.places import scheme_of

    if not scheme_of(source):
        yield Path(source)
    if recipe is not None:
        yield from (Path(path) for path, _ in named_files(recipe))
        for folder in recipe.references():
            with contextlib.suppress(OSError, ValueError):
                yield from (file for file in Path(recipe.locate(folder)).iterdir() if file.suffix in _SUFFIXES)
