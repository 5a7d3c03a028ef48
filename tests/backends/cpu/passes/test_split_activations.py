"""backends/cpu/passes/split_activations.py: f32 rows are split once for the bf16 matmuls of the tile unit."""

from types import SimpleNamespace

import numpy as np
import pytest

from pyc.backends.cpu.layouts import PANEL16
from pyc.backends.cpu.meanings import cpu_meanings
from pyc.backends.cpu.operators import ALL_OPERATORS
from pyc.backends.cpu.passes.split_activations import SplitActivations
from pyc.compiler.interpret import Interpreter
from pyc.compiler.ir import Module
from pyc.compiler.schemes import Dense, Float8, Int8Channel
from pyc.compiler.text import parse_graph, print_graph
from pyc.compiler.verify import verify
from pyc.compiler.weights import Packed, Source, Stored

GRAPH = """\
f(x: f32[tokens, 40], row: i32[1]) -> y {
  a = linear(x; v, -) : f32[tokens, 8]
  b = linear(x; w, bias) : f32[tokens, 8]
  o = select_row(x, row) : f32[1, 40]
  c = linear(o; w, -) : f32[1, 8]
  d = select_row(a, row) : f32[1, 8]
  e = select_row(b, row) : f32[1, 8]
  z = add(c, d) : f32[1, 8]
  y = add(z, e) : f32[1, 8]
}"""
SPLIT = GRAPH.replace("f(", "f.amx(", 1).replace(
    "  a = linear(x; v, -) :",
    "  x.pieces = split_rows(x) : u8[tokens, 384]\n  a = linear_split(x.pieces; v, -) {features = 40} :",
).replace("b = linear(x; w, bias) :", "b = linear_split(x.pieces; w, bias) {features = 40} :")  # fmt: skip


def module_of(scheme):
    matrix = Packed(Stored(Source("f", "w", "f32", (8, 40), 0, 1280), scheme), PANEL16)
    return Module(parse_graph(GRAPH), {"v": matrix, "w": matrix, "bias": SimpleNamespace(shape=(8,))}, info=None)


@pytest.mark.parametrize("scheme", [Dense("bf16"), Float8(), Float8("e5m2", "tensor")], ids=str)
def test_a_value_is_split_once_for_matmuls_of_a_batch(scheme):
    module = module_of(scheme)
    after = SplitActivations().run(module)
    verify(after, "after", ALL_OPERATORS)
    assert print_graph(after.graph) == f"{GRAPH}\n{SPLIT}"
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=weight.shape) for name, weight in module.weights.items()}
    interpreter = Interpreter(after.graph, weights, meanings=cpu_meanings)
    inputs = {"x": random.normal(size=(3, 40)), "row": np.array([1])}
    assert np.array_equal(interpreter.run("f", inputs, "amx"), interpreter.run("f", inputs))


@pytest.mark.parametrize("scheme", [Dense("f32"), Dense("f16"), Int8Channel("f32"), Float8(scaling="block")], ids=str)
def test_other_weights_are_multiplied_by_f32(scheme):
    module = module_of(scheme)
    assert SplitActivations().run(module).graph == module.graph
