"""compiler/rewrite.py: what passes rewrite functions with."""

from dataclasses import replace

from pyc.compiler.ir import Graph
from pyc.compiler.rewrite import map_functions, only_readers, weight_readers, with_operations, with_replaced
from pyc.compiler.text import parse_graph

TEXT = """\
f(x: f32[tokens, 4]) -> %4 {
  %0 = add(x, x) : f32[tokens, 4]
  %1 = rms_norm(%0; gain) {epsilon = 0.1} : f32[tokens, 4]
  %2 = add(%1, %1) : f32[tokens, 4]
  %3 = add(%0, %2) : f32[tokens, 4]
  %4 = add(%3, x) : f32[tokens, 4]
}"""
FUNCTION = parse_graph(TEXT).functions[0]


def test_who_alone_reads_a_value():
    readers = only_readers(FUNCTION)
    assert {name: reader.result.name for name, reader in readers.items()} == {"%1": "%2", "%2": "%3", "%3": "%4"}
    assert "%2" not in only_readers(replace(FUNCTION, result="%2"))


def test_operations_are_replaced_and_left_out():
    other = replace(FUNCTION.operations[3], operands=("%0", "%1"))
    found = with_replaced(FUNCTION, {"%2": None, "%3": other})
    assert found.operations == (*FUNCTION.operations[:2], other, FUNCTION.operations[4])


def test_an_operation_lives_by_any_of_its_results():
    first, *rest = FUNCTION.operations
    both = replace(first, result=replace(first.result, name="%9"), also=(first.result,))
    found = with_operations(FUNCTION, [both, *rest], {})
    assert found.operations[0] == both
    assert with_operations(replace(FUNCTION, result="x"), [both, *rest], {}).operations == ()


def test_versions_are_rewritten_and_read_too():
    version = replace(FUNCTION, version="other")
    graph = map_functions(Graph((FUNCTION,), (version,)), lambda function: replace(function, result="%3"))
    assert [(function.version, function.result) for function in graph.all_functions] == [("", "%3"), ("other", "%3")]
    assert len(weight_readers(graph, "gain")) == 2
