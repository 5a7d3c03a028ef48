"""compiler/manager.py: order, records, and the blame for a pass that breaks the module."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from pyc.backends.cpu.backend import CpuBackend
from pyc.compiler.ir import Graph, Module
from pyc.compiler.manager import check_order, run_passes
from pyc.compiler.operators import OPERATORS, Operator
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.text import parse_graph
from pyc.compiler.weights import Source
from pyc.passes.pipeline import HOLDS, pipeline
from pyc.runtime.artifact.format import ModelInfo

PAIR = Operator(1, 0, frozenset(), lambda shapes, weights, attributes: (shapes[0][0], 4))
TEXT = "forward(ids: i32[tokens]) -> %0 {\n  %0 = embedding(ids; embed) : f32[tokens, 8]\n}"
MODULE = Module(
    parse_graph(TEXT),
    {"embed": Source("f", "embed", "f32", (32, 8), 0, 1024)},
    ModelInfo("llama", "decoder", 32, 8, 64, 1, None, None),
)


@dataclass(frozen=True)
class Renaming:
    """Renames the function."""

    to: str
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    name: ClassVar[str] = "renaming"
    version: ClassVar[int] = 3

    def options(self) -> dict[str, str]:
        return {"to": self.to}

    def run(self, module: Module) -> Module:
        function = replace(module.graph.functions[0], name=self.to)
        return module.with_graph(Graph((function,)))


class Breaking(Renaming):
    """Returns what is not defined."""

    name = "breaking"

    def run(self, module: Module) -> Module:
        return module.with_graph(Graph((replace(module.graph.functions[0], result="%9"),)))


def test_passes_run_in_order_and_leave_a_record() -> None:
    after = run_passes(MODULE, [Renaming("a", provides=("x",)), Renaming("b", requires=("x",))])
    assert [function.name for function in after.graph.functions] == ["b"]
    assert [(record.name, record.version) for record in after.passes] == [("renaming", 3)] * 2
    assert [json.loads(record.options) for record in after.passes] == [{"to": "a"}, {"to": "b"}]
    assert MODULE.passes == ()


@pytest.mark.parametrize(
    "passes",
    [
        [Renaming("a", requires=("x",))],
        [Renaming("a", requires=("x",)), Renaming("b", provides=("x",))],
        [Renaming("a", requires=("x",), provides=("x",))],
    ],
)
def test_a_pass_before_what_it_requires(passes: list[Renaming]) -> None:
    with pytest.raises(AssertionError, match=r"renaming requires \['x'\], which no pass before it provides"):
        check_order(passes)


def test_a_pass_that_breaks_the_module_is_named() -> None:
    with pytest.raises(AssertionError, match=r"^breaking: forward: returns %9, never defined"):
        run_passes(MODULE, [Breaking("a")])


def test_a_module_that_comes_in_broken_is_ingests_fault() -> None:
    with pytest.raises(AssertionError, match=r"^ingest: "):
        run_passes(Breaking("a").run(MODULE), [Renaming("b")])


def test_what_the_pipeline_leaves_is_what_it_says() -> None:
    passes = pipeline(recipe_from({"model": "m"}), ())
    assert {name for step in passes for name in step.provides} == HOLDS
    check_order(CpuBackend().passes(), HOLDS)


def test_the_operators_of_a_backend_are_legal_in_its_modules_alone() -> None:
    text = TEXT.replace("-> %0", "-> %1").replace("\n}", "\n  %1 = pair(%0) : f32[tokens, 4]\n}")
    module = replace(MODULE, graph=parse_graph(text))
    with pytest.raises(AssertionError, match="no operator is called 'pair'"):
        run_passes(module, [])
    run_passes(module, [], operators={**OPERATORS, "pair": PAIR})


def test_the_order_of_the_pipeline_is_legal_and_matters() -> None:
    passes = (*pipeline(recipe_from({"model": "m"}), ()), *CpuBackend().passes())
    check_order(passes)
    for index, step in enumerate(passes):
        assert step.name == type(step).__module__.rpartition(".")[2]
        if step.requires:
            with pytest.raises(AssertionError, match=f"{step.name} requires"):
                check_order([step, *passes[:index], *passes[index + 1 :]])
