"""backends/cpu/operators.py: what the CPU's operators infer and refuse, and the traits that passes ask for."""

import pytest

from pyc.backends.cpu.layouts import quantized_row_bytes
from pyc.backends.cpu.operators import ALL_OPERATORS, CPU_OPERATORS, MATMULS, READ_QUANTIZED_ROWS
from pyc.compiler.ir import TensorType
from pyc.compiler.operators import OPERATORS, infer_type, infer_types

ROWS = TensorType("f32", ("tokens", 64))
FLOATS = {"features": 64, "row_format": "float_scale"}
QUANTIZED = TensorType("u8", ("tokens", quantized_row_bytes(64, "float_scale")))


def infer(kind, operands, weights=(), **attributes):
    return infer_type(kind, operands, weights, attributes, ALL_OPERATORS)


def test_no_operator_has_the_name_of_a_logical_one():
    assert not CPU_OPERATORS.keys() & OPERATORS.keys()
    assert len(ALL_OPERATORS) == len(CPU_OPERATORS) + len(OPERATORS)


@pytest.mark.parametrize("kind", CPU_OPERATORS)
def test_they_are_not_legal_before_lowering(kind):
    with pytest.raises(ValueError, match=f"no operator is called '{kind}'"):
        infer_type(kind, (ROWS,), (), {})


def test_what_multiplies_matrices_alone_or_fused():
    fused = {"linear_append", "linear_quantized_append", "linear_gated_quantize"}
    assert {"linear", "linear_quantized", "linear_split", *fused} == MATMULS
    assert MATMULS - {"linear", "linear_split", "linear_append"} == READ_QUANTIZED_ROWS
    assert {name for name, operator in ALL_OPERATORS.items() if operator.has_matrix} == {"embedding", *MATMULS}


def test_rows_depend_on_rows_of_operands_that_exist():
    for operator in ALL_OPERATORS.values():
        assert all(0 <= index < operator.operands for index in operator.rowwise)
    depends_on_more = {name for name, operator in ALL_OPERATORS.items() if not operator.rowwise}
    assert depends_on_more == {
        "attention", "span_attention", "pool", "select_row", "qkv_append", "qkv_span_attention",
        "linear_append", "linear_quantized_append",
    }  # fmt: skip


def test_records_and_matmuls_of_them():
    assert infer("quantize_rows", (ROWS,), row_format="float_scale") == QUANTIZED
    matmul = infer("linear_quantized", (QUANTIZED,), ((48, 64), None), features=64, row_format="float_scale")
    assert matmul == TensorType("f32", ("tokens", 48))


@pytest.mark.parametrize(
    ("kind", "operands", "weights", "attributes", "message"),
    [
        ("quantize_rows", (ROWS,), (), {"row_format": "int3"}, "row format 'int3' is unknown"),
        ("linear_quantized", (ROWS,), ((48, 64), None), FLOATS, "not those of 64 feat"),
        ("linear_quantized", (QUANTIZED,), ((48, 32), None), FLOATS, "expects 32"),
        ("linear_split", (QUANTIZED,), ((48, 64), None), {"features": 64}, "not those of 64 features in pieces"),
        ("gated_pair", (TensorType("f32", ("tokens", 7)),), (), {"function": "silu"}, "do not split into gate and up"),
        ("select_row", (ROWS, TensorType("i32", (2,))), (), {}, "the row's number has shape"),
    ],
)
def test_what_does_not_fit(kind, operands, weights, attributes, message):
    with pytest.raises(ValueError, match=message):
        infer(kind, operands, weights, **attributes)


@pytest.mark.parametrize(
    ("kind", "operands", "weights", "attributes"),
    [
        ("rms_norm_quantize", (ROWS,), (None,), {"epsilon": 1.0}),
        ("layer_norm_quantize", (ROWS,), ((64,), (64,)), {"epsilon": 1.0}),
        ("activation_quantize", (ROWS,), (), {"function": "silu"}),
        ("gated_quantize", (ROWS, ROWS), (), {"function": "silu"}),
        ("gated_pair_quantize", (TensorType("f32", ("tokens", 128)),), (), {"function": "silu"}),
        ("add_rms_norm_quantize", (ROWS, ROWS), ((64,),), {"epsilon": 1.0, "in_place": False}),
        ("add_layer_norm_quantize", (ROWS, ROWS), ((64,), (64,)), {"epsilon": 1.0, "in_place": True}),
    ],
)
def test_what_quantizes_makes_records_and_perhaps_a_sum(kind, operands, weights, attributes):
    attributes["row_format"] = "float_scale"
    found = infer_types(kind, operands, weights, attributes, ALL_OPERATORS)
    assert found == ((QUANTIZED, ROWS) if kind.startswith("add") else (QUANTIZED,))
    with pytest.raises(ValueError, match="row format 'int3' is unknown"):
        infer(kind, operands, weights, **attributes | {"row_format": "int3"})


HEADS = {"heads": 2, "kv_heads": 1, "head_dim": 32, "layer": 0, "epsilon": 0.0}
NUMBERS = TensorType("i32", ("tokens",))
BEHIND = (TensorType("f32", ("tokens", 16)), NUMBERS, NUMBERS, TensorType("i32", (4, 1)))


def test_fused_products():
    queries = TensorType("f32", ("tokens", 64))
    assert infer("linear_append", (ROWS, *BEHIND), ((128, 64), None, None, None), **HEADS) == queries
    quantized = {"features": 64, "row_format": "float_scale", **HEADS}
    weights = ((128, 64), (128,), (32,), (32,))
    assert infer("linear_quantized_append", (QUANTIZED, *BEHIND), weights, **quantized) == queries
    gated = {"features": 64, "row_format": "float_scale", "makes": "bf16", "function": "silu"}
    made = infer("linear_gated_quantize", (QUANTIZED,), ((96, 64),), **gated)
    assert made == TensorType("u8", ("tokens", quantized_row_bytes(48, "bf16")))


@pytest.mark.parametrize(
    ("kind", "operands", "weights", "attributes", "message"),
    [
        ("linear_append", (ROWS, *BEHIND), ((96, 64), None, None, None), {}, "96 features, not those of 4 heads"),
        ("linear_append", (ROWS, *BEHIND), ((128, 32), None, None, None), {}, "expects 32"),
        (
            "linear_quantized_append",
            (ROWS, *BEHIND),
            ((128, 64), None, None, None),
            FLOATS,
            "operand rows have 64 bytes",
        ),
    ],
)
def test_what_does_not_fit_a_fused_product(kind, operands, weights, attributes, message):
    with pytest.raises(ValueError, match=message):
        infer(kind, operands, weights, **HEADS, **attributes)


def test_sums_are_of_equals():
    other = TensorType("f32", ("tokens", 32))
    with pytest.raises(ValueError, match="operands differ in shape"):
        infer("add_rms_norm_quantize", (ROWS, other), (None,), epsilon=1.0, in_place=False, row_format="float_scale")


def test_a_row_keeps_its_dtype():
    assert infer("select_row", (QUANTIZED, TensorType("i32", (1,)))) == TensorType("u8", (1, QUANTIZED.shape[1]))
