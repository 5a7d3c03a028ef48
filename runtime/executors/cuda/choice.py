"""Which program of an artifact a GPU runs: machine code for it, or PTX, which the driver compiles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pyc.runtime.artifact.format import Program
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cuda.device import Gpu
from pyc.runtime.executors.cuda.program import CONVENTION

BACKEND = "cuda"
Span = Literal["only", "family", "ptx"]
_FEATURE = re.compile(r"compute-(\d{1,2})\.(\d)-(only|family|ptx)")
_PREFERENCE = {"only": 0, "family": 1, "ptx": 2}


def device_features(major: int, minor: int, span: Span) -> tuple[str, ...]:
    """Return what a program needs of a device: that compute capability alone, it and later ones of the same major
    version, or it and all later ones."""
    return (f"compute-{major}.{minor}-{span}",)


def programs_of(programs: Sequence[Program], isa: str | None) -> list[Program]:
    """Return the programs for CUDA, or the one called `isa`; RunError when there is none, or of another convention."""
    found = [program for program in programs if program.backend == BACKEND and isa in (None, program.isa)]
    if not found:
        there = ", ".join(program.isa for program in programs if program.backend == BACKEND) or "none"
        raise RunError(f"isa: no program for CUDA is called {isa!r}; the artifact has {there}")
    name, version = CONVENTION
    for program in found:
        said = {tool.name: tool.version for tool in program.abi}.get(name)
        if said != version:
            raise RunError(
                f"the program for CUDA is of version {said} of {name}, this pyc runs {version}; build the artifact "
                "again, or run it with the pyc that built it"
            )
    return found


def best_program(programs: Sequence[Program], gpu: Gpu) -> Program:
    """Return the program that a GPU runs best; RunError says which there are."""
    capability = gpu.capability
    ranked = []
    for program in programs:
        for feature in program.features:
            match = _FEATURE.fullmatch(feature)
            if match is None:
                continue
            needed, span = (int(match[1]), int(match[2])), match[3]
            fits = {
                "only": capability == needed,
                "family": capability[0] == needed[0] and capability >= needed,
                "ptx": capability >= needed,
            }
            if fits[span]:
                ranked.append((_PREFERENCE[span], (-needed[0], -needed[1]), program))
    if not ranked:
        there = ", ".join(program.isa for program in programs)
        major, minor = capability
        raise RunError(
            f"{gpu.name} has compute capability {major}.{minor}, and the artifact's programs for CUDA are for {there}; "
            f"add one for {major}.{minor} to the recipe's targets (docs/cuda.md lists them) and build it again, or run "
            "another program of the artifact (--backend)"
        )
    return min(ranked, key=lambda entry: entry[:2])[2]
