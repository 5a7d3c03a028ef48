"""`rewrite`: a pass over a graph as text, which must stay legal and mean what it meant."""

from types import SimpleNamespace

import numpy as np
import pytest

from pyc.backends.cpu.meanings import cpu_meanings
from pyc.backends.cpu.operators import ALL_OPERATORS
from pyc.compiler.interpret import Interpreter
from pyc.compiler.ir import Module
from pyc.compiler.text import parse_graph, print_graph
from pyc.compiler.verify import verify

SIZES = {"tokens": 5, "sequences": 1}


@pytest.fixture
def rewrite():
    """`rewrite(step, text)` returns the text of the graph that the pass `step` makes of that of `text`.

    A weight called w.3.4 has the shape [3, 4]. The graph is legal before and after, and what is interpreted of every
    function and version is the same, bit for bit. The text is printed as functions, then versions.
    """

    def rewritten(step, text):
        graph = parse_graph(text)
        shapes = {name: tuple(map(int, name.split(".")[1:])) for name in graph.weight_names()}
        module = Module(graph, {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}, info=None)
        verify(module, "before", ALL_OPERATORS)
        after = step.run(module)
        verify(after, step.name, ALL_OPERATORS)
        random = np.random.default_rng(0)
        weights = {name: random.normal(size=shape) for name, shape in shapes.items()}
        for function in after.graph.all_functions:
            inputs = {value.name: values_of(value.type, random) for value in function.parameters}
            wanted, found = (
                Interpreter(each, weights, meanings=cpu_meanings).run(function.name, inputs, version)
                for each, version in ((graph, ""), (after.graph, function.version))
            )
            assert np.array_equal(found, wanted), (function.name, function.version)
            assert np.isfinite(found).all()
        return print_graph(after.graph)

    return rewritten


def values_of(type_, random):
    """Inputs of a type: counted where they are integers, as positions and blocks are."""
    shape = [SIZES.get(size, size) for size in type_.shape]
    if type_.dtype == "i32":
        return np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return random.normal(size=shape)
