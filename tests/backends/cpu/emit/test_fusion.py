"""Which operations one kernel does together: never one whose result something else reads first."""

from pyc.backends.cpu.emit.fusion import (
    appended_products,
    gated_products,
    only_normed_first,
    only_quantized,
    recorded_attention,
    summed_in_place,
)
from pyc.compiler.ir import Function, Operation, TensorType, Value

ROWS = TensorType("f32", ("tokens", 32))


def operation(kind: str, result: str, *operands: str) -> Operation:
    return Operation(kind, Value(result, ROWS), operands)


def fused(*operations: Operation, result: str = "end") -> tuple[set[str], dict[str, str]]:
    function = Function("forward", (Value("a", ROWS), Value("b", ROWS)), operations, result)
    records = only_quantized(function)
    return set(records), {norm: added.result.name for norm, added in only_normed_first(function, records).items()}


ADD = operation("add", "x", "a", "b")
NORM = operation("rms_norm", "n", "x")
QUANTIZE = operation("quantize_rows", "q", "n")
END = operation("add", "end", "x", "p")
PRODUCT = operation("linear_quantized", "p", "q")


def test_a_sum_is_normed_and_quantized_at_once() -> None:
    assert fused(ADD, NORM, QUANTIZE, PRODUCT, END) == ({"n"}, {"n": "x"})


def test_a_norm_that_is_read_elsewhere_is_a_kernel_of_its_own() -> None:
    assert fused(ADD, NORM, QUANTIZE, PRODUCT, operation("add", "end", "n", "p")) == (set(), {})
    assert fused(ADD, NORM, QUANTIZE, PRODUCT, END, result="n") == (set(), {})
    again = operation("quantize_rows", "q2", "n")
    assert fused(ADD, NORM, QUANTIZE, again, PRODUCT, END) == (set(), {})


def test_a_sum_that_is_read_before_is_a_kernel_of_its_own() -> None:
    assert fused(ADD, operation("activation", "z", "x"), NORM, QUANTIZE, PRODUCT, END) == ({"n"}, {})


def test_a_norm_of_what_is_no_sum_is_quantized_alone() -> None:
    assert fused(operation("rms_norm", "n", "a"), QUANTIZE, PRODUCT, END) == ({"n"}, {})
    product = operation("linear_quantized", "x", "a")
    assert fused(product, NORM, QUANTIZE, PRODUCT, END) == ({"n"}, {})


def test_a_gate_takes_no_sum() -> None:
    assert fused(ADD, operation("gated_pair", "n", "x"), QUANTIZE, PRODUCT, END) == ({"n"}, {})


def typed(
    kind: str, result: str, width: int, *operands: str, rows: str | int = "tokens", **attributes: str
) -> Operation:
    weights = ("w", "") if kind == "linear_quantized" else ()
    value = Value(result, TensorType("f32", (rows, width)))
    return Operation(kind, value, operands, weights, tuple(attributes.items()))


def gated(*operations: Operation) -> set[str]:
    function = Function("forward", (Value("q", ROWS),), operations, "end")
    return set(gated_products(function, only_quantized(function)))


PAIR = typed("linear_quantized", "p", 64, "q")
GATE = typed("gated_pair", "g", 32, "p", function="silu")
RECORDS = typed("quantize_rows", "r", 32, "g")
DOWN = typed("linear_quantized", "end", 32, "r")


def test_a_product_takes_its_gate_along() -> None:
    assert gated(PAIR, GATE, RECORDS, DOWN) == {"p"}


def test_a_product_that_something_else_reads_does_not() -> None:
    assert gated(PAIR, GATE, RECORDS, typed("add", "x", 64, "p", "p"), DOWN) == set()
    assert gated(PAIR, GATE, RECORDS, typed("add", "x", 32, "g", "g"), DOWN) == set()


def test_a_product_of_one_row_or_with_a_bias_or_an_unknown_gate_does_not() -> None:
    assert gated(typed("linear_quantized", "p", 64, "q", rows=1), GATE, RECORDS, DOWN) == set()
    biased = Operation("linear_quantized", PAIR.result, ("q",), ("w", "b"))
    assert gated(biased, GATE, RECORDS, DOWN) == set()
    assert gated(PAIR, typed("gated_pair", "g", 32, "p", function="gelu"), RECORDS, DOWN) == set()
    narrow = typed("gated_pair", "g", 16, "p", function="silu")
    assert gated(typed("linear_quantized", "p", 32, "q"), narrow, RECORDS, DOWN) == set()


def recorded(*operations: Operation, head_dim: int = 32) -> set[str]:
    return set(recorded_attention(Function("forward", (Value("q", ROWS),), operations, "end"), head_dim))


def test_attention_makes_the_records_that_alone_read_it() -> None:
    attention = typed("cached_attention", "g", 32, "q")
    assert recorded(attention, RECORDS, DOWN) == {"g"}
    assert recorded(attention, RECORDS, typed("add", "x", 32, "g", "g"), DOWN) == set()
    assert recorded(attention, typed("quantize_rows", "r", 32, "g", rows=1), DOWN) == set()
    assert recorded(attention, RECORDS, DOWN, head_dim=48) == set()
    assert recorded(typed("rms_norm", "g", 32, "q"), RECORDS, DOWN) == set()


def in_place(*operations: Operation, result: str = "end") -> frozenset[str]:
    function = Function("forward", (Value("a", ROWS), Value("b", ROWS)), operations, result)
    return summed_in_place(function, only_normed_first(function, only_quantized(function)))


OLD, NEW = operation("activation", "old", "a"), operation("activation", "new", "b")
SUM = operation("add", "x", "old", "new")


def test_a_sum_takes_the_place_of_what_nothing_reads_again() -> None:
    assert in_place(OLD, NEW, SUM, NORM, QUANTIZE, PRODUCT, END) == {"n"}
    for name in ("old", "new"):
        before = operation("activation", "z", name)
        assert in_place(OLD, NEW, before, SUM, NORM, QUANTIZE, PRODUCT, END) == {"n"}


def test_a_sum_of_what_is_read_again_or_the_callers_has_a_place_of_its_own() -> None:
    for name in ("old", "new"):
        again = operation("add", "end", "x", name)
        assert in_place(OLD, NEW, SUM, NORM, QUANTIZE, PRODUCT, again) == set()
        assert in_place(OLD, NEW, SUM, NORM, QUANTIZE, PRODUCT, END, result=name) == set()
    twice = operation("add", "x", "old", "old")
    assert in_place(OLD, twice, NORM, QUANTIZE, PRODUCT, END) == set()
    assert in_place(ADD, NORM, QUANTIZE, PRODUCT, END) == set()


def appended(*operations: Operation, head_dim: int = 32) -> dict[str, str]:
    function = Function("forward", (Value("q", ROWS),), operations, "end")
    return {name: product.result.name for name, product in appended_products(function, head_dim).items()}


def test_a_product_that_appending_alone_reads_comes_with_it() -> None:
    append, end = typed("qkv_append", "queries", 32, "p"), typed("linear_quantized", "end", 32, "queries")
    assert appended(PAIR, append, end) == {"queries": "p"}
    assert appended(PAIR, append, end, head_dim=20) == {}
    assert appended(PAIR, append, typed("add", "x", 64, "p", "p"), end) == {}
    assert appended(typed("linear_quantized", "p", 64, "q", rows=1), append, end) == {}
    assert appended(typed("rms_norm", "p", 64, "q"), append, end) == {}
