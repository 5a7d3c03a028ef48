"""The executors by the backend that compiled a program, and which program of an artifact is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyc.runtime.artifact.format import Program
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import Executor, ExecutorOptions


@dataclass(frozen=True, slots=True)
class Entry:
    """What runs the programs of a backend: `choose` says which of them, or raises RunError; `create` loads it.

    `streams`: it takes weights chunk by chunk, and nothing is gained by verifying or fetching all of them before.
    """

    choose: Callable[[tuple[Program, ...], str | None], Program]
    create: Callable[[Artifact, ExecutorOptions], Executor]
    streams: bool = False


def _choose_for_cpu(programs: tuple[Program, ...], isa: str | None) -> Program:
    from pyc.runtime.executors.cpu.features import choose_program
    from pyc.runtime.executors.cpu.libraries import check_convention

    program = choose_program(programs, isa)
    check_convention(program)
    return program


def _create_for_cpu(artifact: Artifact, options: ExecutorOptions) -> Executor:
    from pyc.runtime.executors.cpu.executor import create_executor

    _check_no_providers(options, "the CPU's")
    return create_executor(
        artifact,
        isa=options.isa,
        threads=options.threads,
        kv_blocks=options.kv_blocks,
        random_weights=options.random_weights,
    )


def _choose_for_onnx(programs: tuple[Program, ...], isa: str | None) -> Program:
    from pyc.runtime.executors.onnx.engine import check_machine
    from pyc.runtime.executors.onnx.executor import choose_program

    program = choose_program(programs, isa)
    check_machine()
    return program


def _create_for_onnx(artifact: Artifact, options: ExecutorOptions) -> Executor:
    from pyc.runtime.executors.onnx.executor import OnnxExecutor

    _check_own_weights(options, "ONNX Runtime")
    return OnnxExecutor(artifact, options)


def _choose_for_tensorrt(programs: tuple[Program, ...], isa: str | None) -> Program:
    from pyc.runtime.executors.tensorrt.executor import choose_program
    from pyc.runtime.executors.tensorrt.toolkit import check_machine

    program = choose_program(programs, isa)
    check_machine()
    return program


def _create_for_tensorrt(artifact: Artifact, options: ExecutorOptions) -> Executor:
    from pyc.runtime.executors.tensorrt.executor import TensorRtExecutor

    _check_no_providers(options, "TensorRT's")
    _check_own_weights(options, "TensorRT")
    return TensorRtExecutor(artifact, options)


def _choose_for_cuda(programs: tuple[Program, ...], isa: str | None) -> Program:
    from pyc.runtime.executors.cuda.executor import choose_program

    return choose_program(programs, isa)


def _create_for_cuda(artifact: Artifact, options: ExecutorOptions) -> Executor:
    from pyc.runtime.executors.cuda.executor import CudaExecutor

    _check_no_providers(options, "CUDA's")
    return CudaExecutor(artifact, options)


def _check_no_providers(options: ExecutorOptions, whose: str) -> None:
    if options.providers:
        raise RunError(f"providers: they are ONNX Runtime's, and the program is {whose}; load it with backend onnx")


def _check_own_weights(options: ExecutorOptions, engine: str) -> None:
    if options.random_weights is not None:
        raise RunError(
            f"random weights: programs for {engine} take the artifact's own; measure another program (--backend cpu or "
            "cuda), or an artifact with weights"
        )


_CPU = Entry(_choose_for_cpu, _create_for_cpu)
_ONNX = Entry(_choose_for_onnx, _create_for_onnx)
_TENSORRT = Entry(_choose_for_tensorrt, _create_for_tensorrt)
_CUDA = Entry(_choose_for_cuda, _create_for_cuda, streams=True)

EXECUTORS: dict[str, Entry] = {"cpu": _CPU, "tvm": _CPU, "onnx": _ONNX, "tensorrt": _TENSORRT, "cuda": _CUDA}
"""By the name in a header; the CPU's programs said "tvm" once."""


def choose_program(programs: tuple[Program, ...], isa: str | None, backend: str | None = None) -> Program:
    """Return the program that runs here, or the one called `isa`; RunError says why there is none."""
    entry, candidates = find_entry(programs, isa, backend)
    return entry.choose(candidates, isa)


def find_entry(
    programs: tuple[Program, ...], isa: str | None, backend: str | None = None
) -> tuple[Entry, tuple[Program, ...]]:
    """Return the entry whose executor runs an artifact, and the programs that are its.

    It is the first of the artifact's backends that has an executor and runs here, or `backend`'s, or that of the
    variant that is asked for. Raises RunError when there is none.
    """
    if backend is not None:
        programs = _of_backend(programs, backend)
    named = tuple(program for program in programs if program.isa == isa)
    backends = list(dict.fromkeys(program.backend for program in named or programs))
    known = [EXECUTORS[name] for name in backends if name in EXECUTORS]
    if backends and not known:
        raise RunError(
            f"the artifact has programs for {', '.join(backends)}, and this pyc runs those for "
            f"{', '.join(_names())}; install a newer pyc, or build the artifact for what this one runs"
        )
    entry = known[0] if known else _CPU  # which says that there are none
    if len(known) > 1:
        entry = next((other for other in known if _runs(other, programs, isa)), entry)
    return entry, _programs_of(entry, programs)


def _programs_of(entry: Entry, programs: tuple[Program, ...]) -> tuple[Program, ...]:
    return tuple(program for program in programs if EXECUTORS.get(program.backend) is entry)


def _runs(entry: Entry, programs: tuple[Program, ...], isa: str | None) -> bool:
    """Whether this machine runs one of the programs that are the entry's."""
    try:
        entry.choose(_programs_of(entry, programs), isa)
    except RunError:
        return False
    return True


def _of_backend(programs: tuple[Program, ...], backend: str) -> tuple[Program, ...]:
    if backend not in EXECUTORS:
        raise RunError(f"backend: got {backend!r}, expected one of {', '.join(_names())}")
    wanted = EXECUTORS[backend]
    found = tuple(program for program in programs if EXECUTORS.get(program.backend) is wanted)
    if not found:
        there = ", ".join(dict.fromkeys(program.backend for program in programs)) or "none"
        raise RunError(
            f"backend {backend}: the artifact has no program for it, only for {there}; "
            f"add `- backend: {backend}` to the recipe's targets and build it again"
        )
    return found


def _names() -> tuple[str, ...]:
    """Return the backends that this runtime has executors for, by the first name of each."""
    first = {entry: name for name, entry in reversed(EXECUTORS.items())}
    return tuple(reversed(first.values()))
