"""runtime/executors/cuda/choice.py: the program that a GPU runs."""

import pytest

from pyc.runtime.artifact.format import Program, Tool
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cuda.choice import best_program, device_features, programs_of
from pyc.runtime.executors.cuda.device import Gpu
from pyc.runtime.executors.cuda.program import CONVENTION

FOR = {
    "sm_80": (8, 0, "family"),
    "sm_89": (8, 9, "family"),
    "sm_90a": (9, 0, "only"),
    "sm_100a": (10, 0, "only"),
    "sm_120": (12, 0, "family"),
    "compute_100": (10, 0, "ptx"),
}


def program(isa, backend="cuda", version=CONVENTION[1]):
    features = device_features(*FOR[isa]) if isa in FOR else ()
    abi = (Tool(CONVENTION[0], version),)
    return Program(backend, "cuda", "any", "linux", isa, features, f"cuda/{isa}.launches", abi, ())


ALL = tuple(map(program, FOR))


def gpu(capability):
    return Gpu(0, "A100", 80 << 30, capability)


@pytest.mark.parametrize(
    ("capability", "isa"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_80"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "compute_100"),
        ((12, 0), "sm_120"),
        ((12, 1), "sm_120"),
        ((13, 0), "compute_100"),
    ],
)
def test_each_gpu_takes_its_own_program(capability, isa):
    assert best_program(programs_of(ALL, None), gpu(capability)).isa == isa


def test_a_gpu_older_than_all_programs_is_told_what_there_is():
    with pytest.raises(RunError, match=r"compute capability 7\.5, .* are for sm_80, sm_89, sm_90a, "):
        best_program(ALL, gpu((7, 5)))


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
def test_a_gpu_without_a_program_is_told_what_there_is(capability):
    there = tuple(map(program, ("sm_89", "sm_100a", "compute_100")))
    said = r"A100 has compute capability \d\.\d, .* are for sm_89, sm_100a, compute_100; add one for \d\.\d to"
    with pytest.raises(RunError, match=said):
        best_program(there, gpu(capability))


def test_another_backends_programs_do_not_count():
    with pytest.raises(RunError, match=r"no program for CUDA is called 'sm_90'; the artifact has sm_80"):
        programs_of((program("sm_80"), program("x", backend="cpu")), "sm_90")


def test_a_program_of_another_convention_is_refused():
    with pytest.raises(RunError, match=r"is of version 99 of pyc-cuda, this pyc runs .*build the artifact again"):
        programs_of((program("sm_80", version="99"),), None)
