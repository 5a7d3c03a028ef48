"""compiler/verify.py: each way in which a module is not legal is named, with the stage and the operation."""

import pytest

from pyc.compiler.ir import Module
from pyc.compiler.operators import OPERATORS, Operator
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


VERSION = LEGAL.replace("forward(", "forward.wide(")
"""As legal, beside LEGAL."""


def test_a_legal_version_passes() -> None:
    verify(module_of(LEGAL + VERSION), "ingest")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VERSION, "some_pass: forward.wide: is a version of no function"),
        (LEGAL + VERSION + VERSION, "some_pass: two versions of a function have one name"),
        (LEGAL + VERSION.replace("-> %1", "-> %0"), "some_pass: forward.wide: returns %0, forward %1"),
        (LEGAL + VERSION.replace("ids: i32[tokens]", "ids: i32[4]"), "some_pass: forward.wide: has other parameters"),
        (LEGAL + VERSION.replace("%0 = ", "%2 = "), "some_pass: forward: %1 = linear: reads ['%0']"),
    ],
)
def test_a_version_that_is_not_legal_is_named(text: str, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        verify(module_of(text), "some_pass")
    assert str(caught.value).startswith(message)


PAIR = Operator(1, 0, frozenset(), lambda shapes, weights, attributes: (shapes[0][0], 9), also=(0,))
PAIRED = """
forward(x: f32[tokens, 8]) -> %2 {
  %0, %1 = pair(x) : f32[tokens, 9], f32[tokens, 8]
  %2 = add(%1, %1) : f32[tokens, 8]
}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "", ""),
        ("%0, %1 = pair(x) : f32[tokens, 9], f32[tokens, 8]", "%1 = pair(x) : f32[tokens, 9]", "%1 = pair: has ("),
        ("9], f32[tokens, 8]", "9], f32[tokens, 7]", "%0, %1 = pair: has ("),
        ("%0, %1 =", "%1, %1 =", "%1, %1 = pair: defined twice"),
        ("%0, %1 =", "%0, x =", "%0, x = pair: defined twice"),
    ],
)
def test_further_results(old: str, new: str, message: str) -> None:
    module = Module(parse_graph(PAIRED.replace(old, new)), {}, INFO)
    if not message:
        verify(module, "some_pass", {**OPERATORS, "pair": PAIR})
        return
    with pytest.raises(AssertionError) as caught:
        verify(module, "some_pass", {**OPERATORS, "pair": PAIR})
    assert str(caught.value).startswith(f"some_pass: forward: {message}")
