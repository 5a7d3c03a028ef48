"""backends/cpu/versions.py: which version a number of rows takes, and what stands for one that is not there."""

from dataclasses import replace

import pytest

from pyc.backends.cpu.versions import are_many, find_version, rewrite_version, version_of
from pyc.compiler.text import parse_graph

GRAPH = parse_graph("""
f(x: f32[tokens, 4]) -> y {
  y = add(x, x) : f32[tokens, 4]
}
g(x: f32[tokens, 4]) -> y {
  y = activation(x) {function = "silu"} : f32[tokens, 4]
}
""")
FOLDED, WHOLE = "scale_folded", "scale_folded_whole"
OTHER = parse_graph("""
f(x: f32[tokens, 4]) -> y {
  y = gated(x, x) {function = "silu"} : f32[tokens, 4]
}
""").functions[0].operations


def changed(function):
    """A rewrite that has something to do in f alone."""
    return replace(function, operations=OTHER) if function.name == "f" else function


@pytest.mark.parametrize(
    ("strategy", "versions"),
    [
        ("simd", {1: "", 31: "", 32: "", 96: "", 4096: ""}),
        ("scale_folded", {1: "", 95: "", 96: WHOLE, 97: FOLDED, 100: FOLDED, 104: WHOLE}),
        ("amx", {1: "", 31: "", 32: "amx", 33: "amx", 512: "amx"}),
    ],
)
def test_rows_take_the_version_of_their_number(strategy, versions):
    assert {rows: version_of(rows, strategy) for rows in versions} == versions
    assert [rows for rows in versions if are_many(rows, strategy)] == [rows for rows in versions if versions[rows]]


def test_what_stands_for_a_version():
    for version in ("", "scale_folded", "scale_folded_whole", "amx"):
        assert find_version(GRAPH, "f", version) == GRAPH.function("f")
    graph = rewrite_version(GRAPH, "scale_folded", changed)
    assert find_version(graph, "f", "scale_folded_whole") == graph.versions[0]
    assert find_version(graph, "f", "scale_folded") == graph.versions[0]
    assert find_version(graph, "f", "amx") == GRAPH.function("f")
    assert find_version(graph, "g", "scale_folded") == GRAPH.function("g")
    with pytest.raises(KeyError):
        find_version(graph, "h", "scale_folded")


def test_a_version_is_there_where_it_differs():
    graph = rewrite_version(GRAPH, "scale_folded", changed)
    assert graph.functions == GRAPH.functions
    assert [(function.name, function.version) for function in graph.versions] == [("f", "scale_folded")]
    assert graph.versions[0].operations == OTHER
    assert rewrite_version(GRAPH, "amx", lambda function: function) == GRAPH
    assert rewrite_version(graph, "scale_folded_whole", lambda function: function) == graph


def test_a_version_that_is_there_is_rewritten_in_its_place():
    graph = rewrite_version(GRAPH, "scale_folded", changed)
    assert rewrite_version(graph, "scale_folded", lambda function: function) == graph
    back = GRAPH.function("f").operations
    again = rewrite_version(graph, "scale_folded", lambda f: replace(f, operations=back) if f.name == "f" else f)
    assert [(function.version, function.operations) for function in again.versions] == [("scale_folded", back)]
    more = rewrite_version(graph, "amx", changed)
    assert [(function.name, function.version) for function in more.versions] == [("f", "scale_folded"), ("f", "amx")]
