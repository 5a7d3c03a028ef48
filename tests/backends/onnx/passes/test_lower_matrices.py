"""backends/onnx/passes/lower_matrices.py: quantized matrices become parts, the others rows."""

import pytest
from weight_files import source

from pyc.backends.onnx.layouts import CODES, FLOAT8_CODES, FLOAT8_SCALES, ROWS, SCALES, ZERO_POINTS
from pyc.backends.onnx.operators import ALL_OPERATORS
from pyc.backends.onnx.passes.lower_matrices import LowerMatrices
from pyc.compiler.ir import Module
from pyc.compiler.schemes import SCHEMES, parse_scheme
from pyc.compiler.text import parse_graph, print_graph
from pyc.compiler.verify import verify
from pyc.compiler.weights import Packed, Stored
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import LowerError, QuantizeError

__all__ = ["source"]

PARTS, FLOATS = ("codes", "scales"), (FLOAT8_CODES, FLOAT8_SCALES)

INFO = ModelInfo("llama", "decoder", 8, 64, 16, 1, None, None)
GRAPH = """
forward(token_ids: i32[tokens]) -> %2 {
  %0 = embedding(token_ids; table) : f32[tokens, 64]
  %1 = linear(%0; up, -) : f32[tokens, 6]
  %2 = linear(%0; table, bias) : f32[tokens, 8]
}
"""


@pytest.fixture
def lowered(source):
    def run(table, up, columns=64):
        weights = {
            "table": Stored(source([[0.5] * columns] * 8), SCHEMES[table]),
            "up": Stored(source([[0.5] * columns] * 6), SCHEMES[up]),
            "bias": Stored(source([1.0] * 8), SCHEMES["f32"]),
        }
        module = Module(parse_graph(GRAPH.replace("64", str(columns))), weights, INFO)
        made = LowerMatrices().run(module)
        verify(made, "lower_matrices", ALL_OPERATORS)
        return made

    return run


def test_a_table_that_is_head_too_has_its_parts_once(lowered):
    made = lowered("int4-g32-asym", "bf16")
    assert print_graph(made.graph).splitlines()[1:-1] == [
        "  %0 = blockwise_embedding(token_ids; table.codes, table.scales, table.zero_points) "
        "{bits = 4, block = 32} : f32[tokens, 64]",
        "  %1 = linear(%0; up, -) : f32[tokens, 6]",
        "  %2 = blockwise_linear(%0; table.codes, table.scales, table.zero_points, bias) "
        '{activations = "int8", bits = 4, block = 32} : f32[tokens, 8]',
    ]
    layouts = {name: weight.layout for name, weight in made.weights.items() if isinstance(weight, Packed)}
    assert layouts == {"table.codes": CODES, "table.scales": SCALES, "table.zero_points": ZERO_POINTS, "up": ROWS}


def test_symmetric_codes_have_no_zero_points(lowered):
    made = lowered("int8", "int4-g64")
    assert sorted(made.weights) == ["bias", "table.codes", "table.scales", "up.codes", "up.scales"]


def test_blocks_that_do_not_divide_are_refused(lowered):
    with pytest.raises(QuantizeError, match="in_features=48 is not divisible by group_size=32"):
        lowered("int4-g32", "f32", columns=48)


@pytest.mark.parametrize(("scheme", "activations"), [("fp8", "mxfp8"), ("int4-g32", "mxfp8"), ("fp8-b128", "fp8")])
def test_activations_in_floating_point_of_8_bits_are_refused(source, scheme, activations):
    weights = {
        "table": Stored(source([[0.5] * 64] * 8), SCHEMES["int8"]),
        "up": Stored(source([[0.5] * 64] * 6), parse_scheme(scheme, activations)),
        "bias": Stored(source([1.0] * 8), SCHEMES["f32"]),
    }
    with pytest.raises(LowerError, match=rf"quantize.activations: got '{activations}' \(up\)") as error:
        LowerMatrices().run(Module(parse_graph(GRAPH), weights, INFO))
    assert error.value.exit_code == 7


def test_floating_point_of_8_bits_lies_in_rows(lowered):
    made = lowered("fp8", "fp8-b128")
    assert print_graph(made.graph).splitlines()[1:-1] == [
        '  %0 = float8_embedding(token_ids; table.codes, table.scales) {block = 0, format = "e4m3"} : f32[tokens, 64]',
        '  %1 = float8_linear(%0; up.codes, up.scales, -) {block = 128, format = "e4m3"} : f32[tokens, 6]',
        '  %2 = float8_linear(%0; table.codes, table.scales, bias) {block = 0, format = "e4m3"} : f32[tokens, 8]',
    ]
    layouts = {name: weight.layout for name, weight in made.weights.items() if isinstance(weight, Packed)}
    parts = {f"{name}.{part}": of for name in ("table", "up") for part, of in zip(PARTS, FLOATS, strict=True)}
    assert layouts == parts
