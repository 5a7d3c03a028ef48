"""compiler/text.py and ir.py: what is printed reads back equal, and a wrong line is named."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyc.compiler.ir import Function, Graph, Operation, TensorType, Value
from pyc.compiler.operators import OPERATORS
from pyc.compiler.text import parse_graph, print_graph

NAMES = st.from_regex(r"[a-z%][a-z0-9_.]{0,8}", fullmatch=True)
WEIGHTS = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_.+]{0,12}", fullmatch=True) | st.just("")
TYPES = st.builds(
    TensorType,
    st.sampled_from(["f32", "i32", "u8"]),
    st.lists(st.integers(1, 4096) | st.sampled_from(["tokens", "sequences"]), max_size=3).map(tuple),
)
SCALARS = (
    st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text("abcxyz ,;(){}:=-_", max_size=8)
)
ATTRIBUTES = st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), SCALARS, max_size=4).map(
    lambda pairs: tuple(sorted(pairs.items()))
)
OPERATIONS = st.builds(
    Operation,
    st.sampled_from(sorted(OPERATORS)),
    st.builds(Value, NAMES, TYPES),
    st.lists(NAMES, max_size=3).map(tuple),
    st.lists(WEIGHTS, max_size=3).map(tuple),
    ATTRIBUTES,
    st.lists(st.builds(Value, NAMES, TYPES), max_size=2).map(tuple),
)
PARAMETERS = st.lists(st.builds(Value, st.from_regex(r"[a-z_]{1,8}", fullmatch=True), TYPES), max_size=3)
FUNCTIONS = st.builds(
    Function,
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    PARAMETERS.map(tuple),
    st.lists(OPERATIONS, max_size=5).map(tuple),
    NAMES,
)
VERSIONS = st.builds(replace, FUNCTIONS, version=st.from_regex(r"[a-z_]{1,8}", fullmatch=True))
GRAPHS = st.builds(Graph, *(st.lists(some, max_size=3).map(tuple) for some in (FUNCTIONS, VERSIONS)))


def types_of(graph: Graph) -> list[list[type]]:
    return [[type(value) for _, value in o.attributes] for f in graph.all_functions for o in f.operations]


@pytest.mark.slow
@settings(max_examples=50)
@given(GRAPHS)
def test_what_is_printed_reads_back(graph: Graph) -> None:
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert types_of(again) == types_of(graph)  # 1 == 1.0 == True, but they print as themselves


EXAMPLE = """\
forward(token_ids: i32[tokens], table: i32[2, 4]) -> %1 {
  %0 = embedding(token_ids; model.embed_tokens.weight) : f32[tokens, 64]
  %1 = linear(%0; a.weight, -) : f32[tokens, 8]
  %2 = rms_norm(%1; -) {epsilon = 1e-06, kind = "a, b"} : f32[tokens, 8]
}"""


def test_the_form() -> None:
    graph = parse_graph(EXAMPLE)
    first, second, third = graph.function("forward").operations
    assert first == Operation(
        "embedding",
        Value("%0", TensorType("f32", ("tokens", 64))),
        ("token_ids",),
        ("model.embed_tokens.weight",),
    )
    assert second.weights == ("a.weight", "")
    assert third.attributes == (("epsilon", 1e-6), ("kind", "a, b"))
    assert graph.function("forward").parameters[1].type.shape == (2, 4)
    assert print_graph(graph) == EXAMPLE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forward {", "line 1: expected a function head"),
        ("\n\nf() -> %0 {\n  %0 = add(a\n}", "line 4: expected an operation"),
        ("f() -> %0 {\n  %0 = add(a, b)\n}", "line 2: expected an operation"),
        ("f() -> %0 {\n  %0 = add(a, b) {x = [1]} : f32[1]\n}", "line 2: attribute x"),
        ("f() -> %0 {\n", "the last function is not closed"),
        ("f() -> %0 {\n  %0, %1 = add(a, b) : f32[1]\n}", "line 2: expected a type for each of %0, %1, got f32[1]"),
    ],
)
def test_a_line_that_does_not_parse_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"line|function") as caught:
        parse_graph(text)
    assert str(caught.value).startswith(message)


VERSION = """\
forward.wide(x: f32[tokens, 8]) -> %1 {
  %0, %1 = both(x) {kind = "a = b, c : d"} : u8[tokens, 64], f32[tokens, 8]
}"""


def test_versions_and_further_results() -> None:
    graph = parse_graph(f"{VERSION}\n{EXAMPLE}")
    assert [f"{function.name}.{function.version}" for function in graph.all_functions] == ["forward.", "forward.wide"]
    assert graph.function("forward").version == ""
    wide = graph.function("forward", "wide")
    assert wide == graph.versions[0]
    (both,) = wide.operations
    assert both.results == (both.result, *both.also)
    assert both.also == (Value("%1", TensorType("f32", ("tokens", 8))),)
    assert wide.definitions() == {"%0": both, "%1": both}
    assert print_graph(graph) == f"{EXAMPLE}\n{VERSION}"
    with pytest.raises(KeyError):
        graph.function("forward", "narrow")


def test_users_definitions_and_weight_names() -> None:
    function = parse_graph(EXAMPLE).function("forward")
    assert [operation.kind for operation in function.users()["%1"]] == ["rms_norm"]
    assert function.definitions()["%1"].kind == "linear"
    assert Graph((function,)).weight_names() == ("model.embed_tokens.weight", "a.weight")
    assert Graph((), (function,)).weight_names() == ("model.embed_tokens.weight", "a.weight")
    with pytest.raises(KeyError):
        Graph((function,)).function("logits")


def test_attributes_by_type() -> None:
    operation = parse_graph(EXAMPLE).function("forward").operations[2]
    assert operation.number("epsilon") == 1e-6
    assert operation.text("kind") == "a, b"
    with pytest.raises(AssertionError):
        operation.integer("epsilon")
    with pytest.raises(KeyError):
        operation.number("missing")
