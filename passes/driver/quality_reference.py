"""The reference of an evaluation: a model as its checkpoint has it, compiled without rounding and run by pyc itself.

Weights stay as they are stored, adapters are fused, products take f32 activations and the cache is f32: against
transformers in float32 the demo model then has a KL of 1e-12 (docs/quality.md has what each of these costs).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from pyc.compiler.files.work_folder import work_folder
from pyc.compiler.recipe.types import ArtifactOptions, Quantize, Recipe, Shapes, Target
from pyc.runtime.artifact.format import Program
from pyc.runtime.artifact.trust.key_sources import write_key_file
from pyc.runtime.model import Model, load

ROWS = 256
LOGITS_ROWS = 64


@contextmanager
def reference_model(
    recipe: Recipe,
    program: Program,
    model: Model,
    window: int,
    *,
    build: Callable[[Recipe, Path, Path], object],
    threads: int | None = None,
) -> Iterator[Model]:
    """Yield the model of a recipe without rounding, for windows of so many tokens. It runs on the CPU, in the variant
    of `program` where that is one of the CPU's; `model` is the one to compare. `build` builds a
    recipe to a path, signed by the key of a file.

    The artifact lies in a temporary folder and has a key of its own; what it takes long to make is in the build cache.
    Raises the errors of `build`, and of `load`.
    """
    with work_folder("eval") as folder:
        key = write_key_file(folder / "key")
        exact, output = unrounded(recipe, program, model, window), folder / "reference.pyca"
        build(exact, output, folder / "key")
        with load(output, threads=threads, trust=key.public.text()) as reference:
            yield reference


def unrounded(recipe: Recipe, program: Program, model: Model, context: int) -> Recipe:
    """Return the recipe of the reference: one program, for one sequence of `context` tokens.

    Texts of an encoder are cut where `model` cuts them, whatever the recipe says: it may be of other sizes than the
    artifact.
    """
    rows, text_tokens = ROWS, None
    if model.info.kind == "encoder":
        context = rows = model.info.context
        text_tokens = model.embed_max_tokens
    return replace(
        recipe,
        folder=str(Path(recipe.folder).absolute()),
        quantize=Quantize(scheme="none", kv_cache="f32", activations="f32"),
        shapes=Shapes(
            context=context,
            text_tokens=text_tokens,
            tokens=tuple(sorted({1, min(rows, max(context, 1))})),
            batch=(1,),
            logits=(1, LOGITS_ROWS),
        ),
        targets=(_target(program),),
        artifact=ArtifactOptions(codec="none"),
        quality=None,
    )


def _target(program: Program) -> Target:
    """The CPU's variant that `program` is; for one of another engine all of this machine's, of which it takes the
    best."""
    arch: Literal["x86_64", "aarch64"] = "aarch64" if platform.machine() == "aarch64" else "x86_64"
    return Target(arch=arch, isa=(program.isa,) if program.arch == arch else ())
