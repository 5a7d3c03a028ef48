"""compiler/verify.py: each way in which a module is not legal is named, with the stage and the operation."""

import pytest

from pyc.compiler.ir import Module
from pyc.compiler.text import parse_graph
from pyc.compiler.verify import verify
from pyc.compiler.weights import Constant, Source
from pyc.runtime.artifact.format import ModelInfo

INFO = ModelInfo("llama", "decoder", 32, 8, 64, 1, None, None)
TABLE = Source("f", "embed", "f32", (32, 8), 0, 1024)
MATRIX = Source("f", "w", "f32", (4, 8), 0, 128)
WEIGHTS = {"embed": TABLE, "w": MATRIX, "bias": Constant((0.0,) * 4)}
LEGAL = """
forward(ids: i32[tokens]) -> %1 {
  %0 = embedding(ids; embed) : f32[tokens, 8]
  %1 = linear(%0; w, bias) : f32[tokens, 4]
}
"""


def module_of(text: str) -> Module:
    return Module(parse_graph(text), WEIGHTS, INFO)


def test_a_legal_module_passes() -> None:
    verify(module_of(LEGAL), "ingest")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("linear(%0; w", "linear(%9; w", "reads ['%9'], which is not defined before it"),
        ("%1 = linear", "%0 = linear", "defined twice"),
        ("%0 = embedding", "ids = embedding", "defined twice"),
        ("w, bias", "v, bias", "reads weights that do not exist: ['v']"),
        ("w, bias", "w, -", "weights that no operation reads: ['bias']"),
        ("f32[tokens, 4]", "f32[tokens, 5]", "infers"),
        ("f32[tokens, 4]", "i32[tokens, 4]", "infers"),
        ("linear(%0; w, bias)", "linear(%0; w, embed)", "bias (32, 8) for 4 outputs"),
        ("linear(%0; w, bias)", "linear(%0, %0; w, bias)", "got 2 operands and 2 weights, expected 1 and 2"),
        ("linear(%0; w, bias)", "matmul(%0; w, bias)", "no operator is called 'matmul'"),
        ("linear(%0; w, bias)", "linear(%0; w, bias) {x = 1}", "got attributes ['x'], expected []"),
        ("linear(%0; w, bias)", "linear(%0; -, bias)", "weight 0 is required"),
        ("-> %1", "-> %7", "returns %7, never defined"),
        (
            "linear(%0; w, bias) : f32[tokens, 4]",
            'activation(%0) {function = "tanh"} : f32[tokens, 8]',
            "unknown activation 'tanh'",
        ),
        (
            "linear(%0; w, bias) : f32[tokens, 4]",
            "slice(%0) {start = 4, stop = 9} : f32[tokens, 5]",
            "slice [4, 9) of 8 features",
        ),
    ],
)
def test_what_is_not_legal_is_named(old: str, new: str, message: str) -> None:
    assert old in LEGAL
    with pytest.raises(AssertionError) as caught:
        verify(module_of(LEGAL.replace(old, new)), "some_pass")
    assert str(caught.value).startswith("some_pass: ")
    assert message in str(caught.value)


def test_two_functions_of_one_name() -> None:
    with pytest.raises(AssertionError, match="two functions have one name"):
        verify(module_of(LEGAL + LEGAL), "some_pass")


def test_functions_do_not_see_each_others_values() -> None:
    other = "\nlogits(hidden: f32[tokens, 8]) -> %2 {\n  %2 = add(%0, %0) : f32[tokens, 8]\n}\n"
    with pytest.raises(AssertionError, match=r"logits: %2 = add: reads \['%0', '%0'\]"):
        verify(module_of(LEGAL + other), "some_pass")
