"""passes/driver/emit_programs.py: programs are compiled once a content, in the background, and an error shows early."""

import importlib.metadata
import threading

import pytest

from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.protocol import CompiledProgram
from pyc.backends.registry import BACKENDS, backend_for
from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.build import build
from pyc.passes.driver.emit_programs import ProgramCompiler, buckets_of, emit_programs
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.artifact.format import Tool
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.protocol import STEP_CONVENTION

ISAS = ["x86-64", "x86-64-v3", "avx512-vnni"]


class FakeBackend(CpuBackend):
    """Compiles nothing; `gate` must be set before each program is done."""

    def __init__(self):
        super().__init__(Cache(None))
        self.digest = "kernels"
        self.compiled = []
        self.gate = threading.Event()
        self.gate.set()
        self.error = None
        self.version = "1.0"

    def compile(self, module, buckets, isas):
        for isa in isas:
            assert self.gate.wait(30)
            if self.error is not None:
                raise self.error
            self.compiled.append(isa)
            yield CompiledProgram(isa, "x86_64", (isa,), b"library of " + isa.encode(), ())

    def tools(self):
        return (Tool("fake", self.version),)

    def sources_digest(self):
        return self.digest


@pytest.fixture
def backend(monkeypatch):
    fake = FakeBackend()
    monkeypatch.setitem(BACKENDS, "cpu", lambda cache: fake)
    return fake


@pytest.fixture
def recipe(tiny_checkpoint):
    return recipe_from(document(tiny_checkpoint("llama")))


def document(checkpoint, **more):
    targets = [{"backend": "cpu", "device": "cpu", "arch": "x86_64", "isa": ISAS}]
    return {"model": str(checkpoint), "targets": targets, **more}


@pytest.mark.parametrize("listed", [ISAS, ISAS[::-1], [ISAS[1], ISAS[2], ISAS[0]]])
def test_the_fastest_program_is_first_however_the_recipe_lists_them(backend, tiny_checkpoint, tmp_path, listed):
    recipe = recipe_from({**document(tiny_checkpoint("llama")), "targets": [{"arch": "x86_64", "isa": listed}]})
    programs = [program for program, _ in emit_programs(lower_recipe(recipe), recipe, Cache(tmp_path))]
    assert [program.isa for program in programs] == ISAS[::-1]


def test_the_fastest_program_is_first_and_found_again(backend, recipe, tmp_path):
    lowered, cache = lower_recipe(recipe), Cache(tmp_path)
    with ProgramCompiler(lowered, recipe, cache) as compiler:
        first = compiler.programs()
        compiler.check()
    assert [program.isa for program, _ in first] == backend.compiled == ISAS[::-1]
    assert first[0][1] == {"cpu/avx512-vnni.so": b"library of avx512-vnni"}
    assert list(emit_programs(lowered, recipe, cache)) == first
    assert (len(backend.compiled), cache.hits, cache.misses) == (3, 3, 3)


def test_sequences_that_decode_together_have_programs_of_their_own(tiny_checkpoint):
    shapes = {"tokens": [1, 16], "batch": [2, 5], "logits": [1, 16]}
    recipe = recipe_from(document(tiny_checkpoint("llama"), shapes=shapes))
    buckets = buckets_of(recipe, lower_recipe(recipe).common.info)
    assert (buckets.tokens, buckets.logits) == ((1, 2, 5, 16), (1, 2, 5, 16))
    recipe = recipe_from(document(tiny_checkpoint("bert"), shapes={**shapes, "context": 16}))
    info = lower_recipe(recipe).common.info
    assert buckets_of(recipe, info).tokens == (1, 16)  # sequences of an encoder have many rows


def test_what_a_program_depends_on(backend, tiny_checkpoint, tmp_path, monkeypatch):
    cache, checkpoint = Cache(tmp_path), tiny_checkpoint("llama")

    def compiled(**more):
        recipe, before = recipe_from(document(checkpoint, **more)), len(backend.compiled)
        list(emit_programs(lower_recipe(recipe), recipe, cache))
        return len(backend.compiled) - before

    assert compiled() == 3
    assert compiled() == 0
    assert compiled(artifact={"codec": "lz4"}) == 0
    assert compiled(shapes={"tokens": [1, 2]}) == 3
    assert compiled(quantize={"scheme": "int8"}) == 3
    backend.digest = "other kernels"
    assert compiled() == 3
    backend.version = "1.1"
    assert compiled() == 3


def test_an_error_is_told_while_others_work(backend, recipe, tmp_path):
    backend.gate.clear()
    backend.error = LowerError("no")
    with ProgramCompiler(lower_recipe(recipe), recipe, Cache(tmp_path)) as compiler:
        compiler.check()
        backend.gate.set()
        with pytest.raises(LowerError, match="no"):
            compiler.programs()
        with pytest.raises(LowerError, match="no"):
            compiler.check()


def test_leaving_compiles_no_further_program(backend, recipe, tmp_path):
    backend.gate.clear()
    released = threading.Timer(0.2, backend.gate.set)
    with ProgramCompiler(lower_recipe(recipe), recipe, Cache(tmp_path)):
        released.start()
    assert backend.compiled == ISAS[:1:-1]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_failed_program_leaves_no_artifact(backend, tiny_checkpoint, tmp_path, is_early):
    backend.error = LowerError("no")
    if not is_early:
        backend.gate.clear()

    def progress(event):
        if event.stage == "compile":
            backend.gate.set()

    output = tmp_path / "out"
    output.mkdir()
    with pytest.raises(LowerError, match="no"):
        build(document(tiny_checkpoint("llama")), output=output / "model.pyca", use_cache=False, progress=progress)
    assert list(output.iterdir()) == []


def test_the_compilers_and_the_steps_convention_are_known():
    """The key of a program holds the versions of these distributions, and what the runtime expects of its code."""
    tools = backend_for("cpu", Cache(None)).tools()
    installed = {name: importlib.metadata.version(name) for name in ("apache-tvm", "ziglang")}
    assert {tool.name: tool.version for tool in tools} == installed | dict([STEP_CONVENTION])
