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
OTHER = parse_graph("""
f(x: f32[tokens, 4]) -> y {
  y = gated(x, x) {function = "silu"} : f32[tokens, 4]
}
""").functions[0].operations


def changed(function):
    """A rewrite that has something to do in f alone."""
    return replace(function, operations=OTHER) if function.name == "f" else function


@pytest.mark.parametrize(
    ("products", "versions"),
    [
        ("vectors", {1: "", 31: "", 32: "", 96: "", 4096: ""}),
        ("folded", {1: "", 95: "", 96: "folded_whole", 97: "folded", 100: "folded", 104: "folded_whole"}),
        ("tiles", {1: "", 31: "", 32: "tiles", 33: "tiles", 512: "tiles"}),
    ],
)
def test_rows_take_the_version_of_their_number(products, versions):
    assert {rows: version_of(rows, products) for rows in versions} == versions
    assert [rows for rows in versions if are_many(rows, products)] == [rows for rows in versions if versions[rows]]


def test_what_stands_for_a_version():
    for version in ("", "folded", "folded_whole", "tiles"):
        assert find_version(GRAPH, "f", version) == GRAPH.function("f")
    graph = rewrite_version(GRAPH, "folded", changed)
    assert find_version(graph, "f", "folded_whole") == find_version(graph, "f", "folded") == graph.versions[0]
    assert find_version(graph, "f", "tiles") == GRAPH.function("f")
    assert find_version(graph, "g", "folded") == GRAPH.function("g")
    with pytest.raises(KeyError):
        find_version(graph, "h", "folded")


def test_a_version_is_there_where_it_differs():
    graph = rewrite_version(GRAPH, "folded", changed)
    assert graph.functions == GRAPH.functions
    assert [(function.name, function.version) for function in graph.versions] == [("f", "folded")]
    assert graph.versions[0].operations == OTHER
    assert rewrite_version(GRAPH, "tiles", lambda function: function) == GRAPH
    assert rewrite_version(graph, "folded_whole", lambda function: function) == graph


def test_a_version_that_is_there_is_rewritten_in_its_place():
    graph = rewrite_version(GRAPH, "folded", changed)
    assert rewrite_version(graph, "folded", lambda function: function) == graph
    back = GRAPH.function("f").operations
    again = rewrite_version(graph, "folded", lambda f: replace(f, operations=back) if f.name == "f" else f)
    assert [(function.version, function.operations) for function in again.versions] == [("folded", back)]
    more = rewrite_version(graph, "tiles", changed)
    assert [(function.name, function.version) for function in more.versions] == [("f", "folded"), ("f", "tiles")]
