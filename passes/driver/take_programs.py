"""Take programs: compiled code out of another artifact, whose module has to be the same (ADR 51).

Nothing is compiled, and no compiler has to be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.types import Recipe
from pyc.passes.driver.conventions import OtherConvention, other_conventions
from pyc.passes.driver.emit_programs import COMPILERS, Emitted, buckets_of, own_tools
from pyc.passes.driver.module_differences import difference
from pyc.passes.driver.module_identity import MODULE, identity_of, identity_text
from pyc.passes.lower import Lowered
from pyc.runtime.artifact.format import Program, Tool
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.protocol import CACHE_VALUES


class TakenPrograms:
    """The programs of an open artifact, for a module that they were compiled from. It closes the backends."""

    def __init__(self, artifact: Artifact, lowered: Lowered, recipe: Recipe, cache: Cache) -> None:
        """Raises LowerError, saying what differs, for programs of another module; `cache` is not used."""
        self._artifact = artifact
        self._backends = [part.backend for part in lowered.parts]
        self._programs = list(_matching(artifact, lowered, recipe))

    def check(self) -> None:
        """Nothing can fail meanwhile."""

    def programs(self) -> list[Emitted]:
        """Return the programs, for each target the fastest first; raises ArtifactError for damaged bytes."""
        return [(program, {program.library: self._artifact.blob(program.library)}) for program in self._programs]

    def tools(self) -> tuple[Tool, ...]:
        """Return what compiled them, as their artifact records it; not what compiled others of it."""
        used = {*COMPILERS, *(tool.name for program in self._programs for tool in program.abi)}
        return tuple(tool for tool in self._artifact.header.provenance.tools if tool.name in used)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for backend in self._backends:
            backend.close()


def _matching(artifact: Artifact, lowered: Lowered, recipe: Recipe) -> Iterator[Program]:
    buckets = buckets_of(recipe, lowered.common.info)
    for target in recipe.targets:
        part = lowered.part(target.backend)
        text = identity_text(part, buckets)
        for isa in part.backend.fastest_first(target.isa):
            key = (target.backend, target.device, target.arch, isa)
            program = _program(artifact, key)
            if others := other_conventions((program,)):
                raise LowerError(_of_another_pyc(artifact, others[0]))
            recorded = {tool.name: tool.version for tool in program.abi}
            if recorded.get(MODULE) != identity_of(text).version:
                if MODULE not in recorded:
                    raise LowerError(
                        f"{artifact.path}: an older pyc built it and recorded no digest of the module; build it again"
                    )
                raise LowerError(difference(artifact, program, part, lowered.common, recipe, text))
            compilers = (tool for tool in program.abi if tool.name not in (CACHE_VALUES, MODULE))
            yield Program(
                backend=program.backend,
                device=program.device,
                arch=program.arch,
                system=program.system,
                isa=program.isa,
                features=program.features,
                library=program.library,
                abi=(*compilers, *own_tools(part, buckets, isa)),
                functions=program.functions,
            )


def _program(artifact: Artifact, key: tuple[str, str, str, str]) -> Program:
    programs = artifact.header.programs
    found = next((each for each in programs if (each.backend, each.device, each.arch, each.isa) == key), None)
    if found is None:
        if others := other_conventions(programs):
            raise LowerError(_of_another_pyc(artifact, others[0]))
        there = ", ".join(f"{each.backend} {each.arch} {each.isa}" for each in programs) or "none"
        raise LowerError(
            f"{artifact.path}: has no program for the target {key[0]} {key[2]} {key[3]}, only {there}; build it with "
            "this target, or leave the target out of the recipe"
        )
    return found


def _of_another_pyc(artifact: Artifact, other: OtherConvention) -> str:
    programs = artifact.header.programs
    remedies = "build it again with this pyc, `pyc build --program-only` where no weights are needed, or attach with "
    remedies += "the pyc that built it"
    if len(other_conventions(programs)) < len(programs):
        return f"{artifact.path}: {other.told()}; leave its target out of the recipe, {remedies}"
    return f"{artifact.path}: {other.told()}, so no recipe fits it here; {remedies}"
