"""backends/cuda/passes/fuse_append_attention.py: what attends to what was appended is one operation with appending."""

from types import SimpleNamespace

import pytest

from pyc.backends.cuda.operators import ALL_OPERATORS
from pyc.backends.cuda.passes.fuse_append_attention import FuseAppendAttention
from pyc.compiler.ir import Module
from pyc.compiler.text import parse_graph, print_graph
from pyc.compiler.verify import verify

HEAD = (
    "f(p: f32[tokens, 128], angles: f32[tokens, 16], positions: i32[tokens], sequences: i32[tokens], "
    "table: i32[5, 4], others: i32[5, 4]) -> y {"
)
APPEND = (
    "  queries = qkv_append(p, angles, positions, sequences, table; q.32, k.32) "
    "{epsilon = 0.1, head_dim = 32, heads = 2, kv_heads = 1, layer = 3} : f32[tokens, 64]"
)
ATTEND = (
    "  y = cached_attention(queries, positions, sequences, table) "
    "{head_dim = 32, heads = 2, kv_heads = 1, layer = 3, scale = 0.5, window = 7} : f32[tokens, 64]"
)
FUSED = (
    "  y = append_attention(p, angles, positions, sequences, table; q.32, k.32) "
    "{epsilon = 0.1, head_dim = 32, heads = 2, kv_heads = 1, layer = 3, scale = 0.5, window = 7} : f32[tokens, 64]"
)


def rewritten(*lines):
    graph = parse_graph("\n".join([HEAD, *lines, "}"]))
    shapes = {name: tuple(map(int, name.split(".")[1:])) for name in graph.weight_names()}
    module = Module(graph, {name: SimpleNamespace(shape=shape) for name, shape in shapes.items()}, info=None)
    after = FuseAppendAttention().run(module)
    for each in (module, after):
        verify(each, "test", ALL_OPERATORS)
    return print_graph(after.graph).splitlines()[1:-1]


def test_both_are_one():
    assert rewritten(APPEND, ATTEND) == [FUSED]


def test_without_gains_too():
    assert rewritten(APPEND.replace("q.32, k.32", "-, -"), ATTEND) == [FUSED.replace("q.32, k.32", "-, -")]


@pytest.mark.parametrize(
    "lines",
    [
        (APPEND, ATTEND.replace("  y =", "  z ="), "  y = add(z, queries) : f32[tokens, 64]"),
        (APPEND, ATTEND.replace("table)", "others)")),
        (
            APPEND,
            '  chosen = activation(queries) {function = "relu"} : f32[tokens, 64]',
            ATTEND.replace("queries", "chosen"),
        ),
    ],
    ids=["queries are read again", "other rows", "something between"],
)
def test_what_differs_stays(lines):
    assert rewritten(*lines) == list(lines)
