"""Take programs: compiled code out of another artifact, whose module has to be the same (ADR 51).

Nothing is compiled, and no compiler has to be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from types import TracebackType
from typing import Self

from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.types import Recipe
from pyc.passes.emit_programs import COMPILERS, Emitted, buckets_of, own_tools
from pyc.passes.lower import Lowered, Part
from pyc.passes.module_identity import MODULE, identity_of, identity_text, model_lines, text_blob
from pyc.runtime.artifact.format import Header, Program, Tool
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.protocol import CACHE_VALUES

MOST_SHOWN = 200


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
            recorded = {tool.name: tool.version for tool in program.abi}
            if recorded.get(MODULE) != identity_of(text).version:
                raise LowerError(_difference(artifact, part, text, recorded.get(MODULE)))
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
        there = ", ".join(f"{each.backend} {each.arch} {each.isa}" for each in programs) or "none"
        raise LowerError(
            f"{artifact.path}: has no program for the target {key[0]} {key[2]} {key[3]}, only {there}; build it with "
            "this target, or leave the target out of the recipe"
        )
    return found


def _difference(artifact: Artifact, part: Part, text: str, recorded: str | None) -> str:
    """Return the message for a program that was not compiled from the module of this text."""
    path, header = artifact.path, artifact.header
    if recorded is None:
        return f"{path}: an older pyc built it and recorded no digest of the module; build it again"
    name = text_blob(part.backend.name)
    if any(blob.name == name for blob in header.blobs):
        theirs = artifact.blob(name).decode("utf-8", "replace")
    else:
        theirs = _described(header, text)
    for ours, other in zip_longest(text.splitlines(), theirs.splitlines(), fillvalue="nothing"):
        if ours == other:
            continue
        if ours.startswith("code "):
            made = next((t.version for t in header.provenance.tools if t.name == "pyc-compiler"), "unknown")
            return f"{path}: built by another pyc ({made}), whose code does not fit; build it with this one"
        return (
            f"{path}: compiled for another model: this has {_shown(ours)}; the program has {_shown(other)}; take a "
            "checkpoint and a recipe of the same shape, or build the program again"
        )
    return (
        f"{path}: compiled for another model of the same shapes: a value of config.json, a scheme's variant or the pyc "
        "that built it is another; `pyc build --program-only` makes programs that say which"
    )


def _described(header: Header, text: str) -> str:
    """Return `text` with what the header of an artifact with weights says instead: model, tensors, buckets."""
    model = list(model_lines(header.model))
    tensors = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in header.tensors}
    lines = []
    for line in text.splitlines():
        name, _, value = line.partition(" = ")
        if name.startswith("model."):
            line = next(each for each in model if each.startswith(f"{name} = "))
        elif name.startswith("weight ") and not value.startswith(
            f"{tensors.get(name.removeprefix('weight '), 'nothing')},"
        ):
            line = f"{name} = {tensors.get(name.removeprefix('weight '), 'nothing')}"
        elif name in ("buckets.tokens", "buckets.logits"):
            functions = ("logits",) if name.endswith("logits") else ("forward", "embed")
            found = {f.tokens for program in header.programs for f in program.functions if f.name in functions}
            line = f"{name} = {sorted(found)}" if found else line
        lines.append(line)
    return "\n".join(lines)


def _shown(line: str) -> str:
    text = line.strip()
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."
