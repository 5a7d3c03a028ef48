"""runtime/executors/registry.py: which executor runs an artifact's programs."""

import platform
import re
import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from pyc.runtime.artifact.format import Program, Tool
from pyc.runtime.errors import RunError
from pyc.runtime.executors import registry
from pyc.runtime.executors.onnx.program import CONVENTION
from pyc.runtime.executors.protocol import STEP_CONVENTION, ExecutorOptions
from pyc.runtime.executors.registry import EXECUTORS, Entry, choose_program

HERE = platform.machine()


def program(backend: str, isa: str = "x86-64") -> Program:
    return Program(
        backend=backend,
        device="cpu",
        arch=HERE,
        system="linux",
        isa=isa,
        features=(),
        library="l",
        abi=(Tool(*STEP_CONVENTION),),
        functions=(),
    )


@pytest.fixture
def fast(monkeypatch):
    """An executor of a backend called fast, which takes the last of its programs."""
    made = []

    def create(artifact, options):
        made.append(options)
        return "executor"

    monkeypatch.setitem(EXECUTORS, "fast", Entry(lambda programs, isa: programs[-1], create))
    return made


@pytest.mark.parametrize("backend", ["cpu", "tvm"])
def test_the_programs_of_cpus_have_two_names(backend):
    """What was built before the backend was called cpu says tvm."""
    only = program(backend)
    assert choose_program((only,), None) is only


def test_the_first_backend_that_is_known_is_chosen(fast):
    unknown, first, last = program("vulkan"), program("fast", "a"), program("fast", "b")
    assert choose_program((unknown, first, program("cpu"), last), None) is last


def test_a_variant_names_its_backend(fast):
    plain = program("cpu")
    assert choose_program((program("fast", "a"), plain), "x86-64") is plain


def test_what_no_executor_runs_is_named():
    with pytest.raises(RunError, match=r"for vulkan, fast, and this pyc runs those for cpu, .* cuda; install"):
        choose_program((program("vulkan"), program("fast")), None)


def test_no_programs_at_all():
    with pytest.raises(RunError, match="it has no programs"):
        choose_program((), None)


def test_an_executor_is_made_by_the_entry(fast):
    class Artifact:
        class header:  # noqa: N801
            programs = (program("fast"),)

    entry, _ = registry.find_entry(Artifact.header.programs, None)
    made = entry.create(Artifact(), ExecutorOptions(threads=3, kv_blocks=2))
    assert (made, fast) == ("executor", [ExecutorOptions(None, 3, 2)])


@pytest.fixture
def onnxruntime_there(monkeypatch):
    """The package is installed, as far as can be told without importing it."""
    package = types.ModuleType("onnxruntime")
    package.__spec__ = ModuleSpec("onnxruntime", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", package)


def test_a_backend_that_is_asked_for(onnxruntime_there):
    onnx, plain = program("onnx", "onnxruntime"), program("cpu")
    assert choose_program((plain, onnx), None) is plain
    assert choose_program((plain, with_abi(onnx)), None, "onnx").backend == "onnx"


def test_a_program_whose_package_is_not_installed_is_passed_over(onnxruntime_there, monkeypatch):
    """As one of a GPU that is not there; asked for by name, or alone, it says what is missing."""
    onnx, plain = with_abi(program("onnx", "onnxruntime")), program("cpu")
    assert choose_program((onnx, plain), None) is onnx
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert choose_program((onnx, plain), None) is plain
    for programs, backend in (((onnx, plain), "onnx"), ((onnx,), None)):
        with pytest.raises(RunError, match="backend onnx: the package onnxruntime is not installed; to install it"):
            choose_program(programs, None, backend)


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("onnx", "has no program for it, only for cpu; add `- backend: onnx` to the recipe's targets"),
        ("vulkan", "backend: got 'vulkan', expected one of cpu, onnx"),
    ],
)
def test_a_backend_that_is_not_there(backend, said):
    with pytest.raises(RunError, match=re.escape(said)):
        choose_program((program("cpu"),), None, backend)


def with_abi(onnx):
    return Program(**{**as_fields(onnx), "abi": (Tool(*CONVENTION),)})


def test_code_of_another_convention_is_not_chosen():
    with pytest.raises(RunError, match="build the artifact again"):
        choose_program((Program(**{**as_fields(program("tvm")), "abi": ()}),), None)


def as_fields(record):
    return {name: getattr(record, name) for name in record.__struct_fields__}
