"""The executors by the backend that compiled a program, and which program of an artifact is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyc.runtime.artifact.format import Program
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import Executor


class Factory(Protocol):
    """Makes the executor of an artifact whose signature the caller has checked."""

    def __call__(self, artifact: Artifact, *, isa: str | None, threads: int | None, kv_blocks: int) -> Executor:
        """Return an executor of the backend's best program here, or of the one called `isa`.

        `kv_blocks` blocks of positions are reserved for the cache. Raises RunError and ArtifactError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """What runs the programs of a backend: `choose` says which of them, or raises RunError; `create` loads it."""

    choose: Callable[[tuple[Program, ...], str | None], Program]
    create: Factory


def _choose_for_cpu(programs: tuple[Program, ...], isa: str | None) -> Program:
    from pyc.runtime.executors.cpu.features import choose_program
    from pyc.runtime.executors.cpu.libraries import check_convention

    program = choose_program(programs, isa)
    check_convention(program)
    return program


def _create_for_cpu(artifact: Artifact, *, isa: str | None, threads: int | None, kv_blocks: int) -> Executor:
    from pyc.runtime.executors.cpu.executor import create_executor

    return create_executor(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks)


_CPU = Entry(_choose_for_cpu, _create_for_cpu)

EXECUTORS: dict[str, Entry] = {"cpu": _CPU, "tvm": _CPU}
"""By the name in a header; the CPU's programs said "tvm" once."""


def choose_program(programs: tuple[Program, ...], isa: str | None) -> Program:
    """Return the program that runs here, or the one called `isa`; RunError says why there is none."""
    return _entry(programs, isa).choose(programs, isa)


def make_executor(artifact: Artifact, *, isa: str | None, threads: int | None, kv_blocks: int) -> Executor:
    """Return what runs an artifact here, by the first of its backends that has an executor, or by that of `isa`.

    Raises RunError when there is none, and what the executor raises.
    """
    return _entry(artifact.header.programs, isa).create(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks)


def _entry(programs: tuple[Program, ...], isa: str | None) -> Entry:
    named = [program for program in programs if program.isa == isa]
    backends = list(dict.fromkeys(program.backend for program in named or programs))
    known = [EXECUTORS[backend] for backend in backends if backend in EXECUTORS]
    if backends and not known:
        run = {entry: name for name, entry in reversed(EXECUTORS.items())}  # by the first of an entry's names
        raise RunError(
            f"the artifact has programs for {', '.join(backends)}, and this pyc runs those for "
            f"{', '.join(reversed(run.values()))}; install a newer pyc, or build the artifact for what this one runs"
        )
    return known[0] if known else _CPU  # which says that there are none
