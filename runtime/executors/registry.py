"""The executors by the backend that compiled a program, and which programs of an artifact are run."""

from __future__ import annotations

from collections.abc import Mapping
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


def _cpu(artifact: Artifact, *, isa: str | None, threads: int | None, kv_blocks: int) -> Executor:
    from pyc.runtime.executors.cpu.executor import create_executor

    return create_executor(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks)


EXECUTORS: dict[str, Factory] = {"cpu": _cpu, "tvm": _cpu}
"""By the name in a header; the CPU's programs said "tvm" once."""


def make_executor(artifact: Artifact, *, isa: str | None, threads: int | None, kv_blocks: int) -> Executor:
    """Return what runs the artifact here: its first backend that this pyc has an executor for, or that of `isa`.

    Raises RunError when there is none, and what the executor raises.
    """
    factory = _chosen(artifact.header.programs, isa, EXECUTORS)
    return factory(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks)


def _chosen(programs: tuple[Program, ...], isa: str | None, executors: Mapping[str, Factory]) -> Factory:
    named = [program for program in programs if program.isa == isa]
    wanted = list(dict.fromkeys(program.backend for program in named or programs))
    found = next((executors[backend] for backend in wanted if backend in executors), None)
    if found is None and wanted:
        raise RunError(
            f"the artifact's programs are for {', '.join(wanted)}, this pyc runs those for {', '.join(executors)}; "
            "build the artifact again, or run it with the pyc that built it"
        )
    return found or _cpu  # which says that there are none
