"""Which operations one kernel does together: never one whose result something else reads first."""

from pyc.backends.tvm.row_chains import only_normed_first, only_quantized
from pyc.compiler.ir import Function, Operation, TensorType, Value

ROWS = TensorType("f32", ("tokens", 32))


def operation(kind: str, result: str, *operands: str) -> Operation:
    return Operation(kind, Value(result, ROWS), operands)


def chains(*operations: Operation, result: str = "end") -> tuple[set[str], dict[str, str]]:
    function = Function("forward", (Value("a", ROWS), Value("b", ROWS)), operations, result)
    records = only_quantized(function)
    return set(records), {norm: added.result.name for norm, added in only_normed_first(function, records).items()}


ADD = operation("add", "x", "a", "b")
NORM = operation("rms_norm", "n", "x")
QUANTIZE = operation("quantize_rows", "q", "n")
END = operation("add", "end", "x", "p")
PRODUCT = operation("linear_quantized", "p", "q")


def test_a_sum_is_normed_and_quantized_at_once() -> None:
    assert chains(ADD, NORM, QUANTIZE, PRODUCT, END) == ({"n"}, {"n": "x"})


def test_a_norm_that_is_read_elsewhere_is_a_kernel_of_its_own() -> None:
    assert chains(ADD, NORM, QUANTIZE, PRODUCT, operation("add", "end", "n", "p")) == (set(), {})
    assert chains(ADD, NORM, QUANTIZE, PRODUCT, END, result="n") == (set(), {})
    again = operation("quantize_rows", "q2", "n")
    assert chains(ADD, NORM, QUANTIZE, again, PRODUCT, END) == (set(), {})


def test_a_sum_that_is_read_before_is_a_kernel_of_its_own() -> None:
    assert chains(ADD, operation("activation", "z", "x"), NORM, QUANTIZE, PRODUCT, END) == ({"n"}, {})


def test_a_norm_of_what_is_no_sum_is_quantized_alone() -> None:
    assert chains(operation("rms_norm", "n", "a"), QUANTIZE, PRODUCT, END) == ({"n"}, {})
    product = operation("linear_quantized", "x", "a")
    assert chains(product, NORM, QUANTIZE, PRODUCT, END) == ({"n"}, {})


def test_a_gate_takes_no_sum() -> None:
    assert chains(ADD, operation("gated_pair", "n", "x"), QUANTIZE, PRODUCT, END) == ({"n"}, {})
