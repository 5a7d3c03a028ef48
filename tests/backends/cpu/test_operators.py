"""backends/cpu/operators.py: what the CPU's operators infer and refuse, and the traits that passes ask for."""

import pytest

from pyc.backends.cpu.layouts import record_bytes
from pyc.backends.cpu.operators import ALL_OPERATORS, CPU_OPERATORS, MATMULS
from pyc.compiler.ir import TensorType
from pyc.compiler.operators import OPERATORS, infer_type

ROWS = TensorType("f32", ("tokens", 64))
RECORDS = TensorType("u8", ("tokens", record_bytes(64, "exact")))


def infer(kind, operands, weights=(), **attributes):
    return infer_type(kind, operands, weights, attributes, ALL_OPERATORS)


def test_no_operator_has_the_name_of_a_logical_one():
    assert not CPU_OPERATORS.keys() & OPERATORS.keys()
    assert len(ALL_OPERATORS) == len(CPU_OPERATORS) + len(OPERATORS)


@pytest.mark.parametrize("kind", CPU_OPERATORS)
def test_they_are_not_legal_before_lowering(kind):
    with pytest.raises(ValueError, match=f"no operator is called '{kind}'"):
        infer_type(kind, (ROWS,), (), {})


def test_matrices_are_multiplied_by_two_operators():
    assert {"linear", "linear_quantized"} == MATMULS
    assert [name for name, operator in ALL_OPERATORS.items() if operator.has_matrix] == [
        "embedding",
        "linear",
        "linear_quantized",
    ]


def test_rows_depend_on_rows_of_operands_that_exist():
    for operator in ALL_OPERATORS.values():
        assert all(0 <= index < operator.operands for index in operator.rowwise)
    depends_on_more = {name for name, operator in ALL_OPERATORS.items() if not operator.rowwise}
    assert depends_on_more == {
        "attention", "span_attention", "pool", "select_row", "qkv_append", "qkv_span_attention",
    }  # fmt: skip


def test_records_and_products_of_them():
    assert infer("quantize_rows", (ROWS,), records="exact") == RECORDS
    product = infer("linear_quantized", (RECORDS,), ((48, 64), None), features=64, records="exact")
    assert product == TensorType("f32", ("tokens", 48))


@pytest.mark.parametrize(
    ("kind", "operands", "weights", "attributes", "message"),
    [
        ("quantize_rows", (ROWS,), (), {"records": "int3"}, "records 'int3' are unknown"),
        ("linear_quantized", (ROWS,), ((48, 64), None), {"features": 64, "records": "exact"}, "not those of 64 feat"),
        ("linear_quantized", (RECORDS,), ((48, 32), None), {"features": 64, "records": "exact"}, "expects 32"),
        ("gated_pair", (TensorType("f32", ("tokens", 7)),), (), {"function": "silu"}, "do not split into gate and up"),
        ("select_row", (ROWS, TensorType("i32", (2,))), (), {}, "the row's number has shape"),
    ],
)
def test_what_does_not_fit(kind, operands, weights, attributes, message):
    with pytest.raises(ValueError, match=message):
        infer(kind, operands, weights, **attributes)


def test_a_row_keeps_its_dtype():
    assert infer("select_row", (RECORDS, TensorType("i32", (1,)))) == TensorType("u8", (1, RECORDS.shape[1]))
