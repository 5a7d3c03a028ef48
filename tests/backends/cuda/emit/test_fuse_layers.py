"""backends/cuda/emit/fuse_layers.py: layers do what stands around them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pyc.backends.cuda.emit import fuse_layers
from pyc.backends.cuda.emit.calls import Context
from pyc.compiler.schemes import SCHEMES
from pyc.compiler.text import parse_graph

HEAD = "forward(x: f32[tokens, 64], r: f32[tokens, 32]) -> y {"
OUT = "  o = linear(x; w.32.64, -) : f32[tokens, 32]"
NORM = "  n, t = add_rms_norm(r, o; g.32) {epsilon = 0.1} : f32[tokens, 32], f32[tokens, 32]"
UP = "  p = linear(n; w.96.32, b.96) : f32[tokens, 96]"
GATE = '  h = gated_pair(p) {function = "silu"} : f32[tokens, 48]'
DOWN = "  d = linear(h; w.32.48, -) : f32[tokens, 32]"
LAST = "  y = add(t, d) : f32[tokens, 32]"
BLOCK = (OUT, NORM, UP, GATE, DOWN, LAST)


def fused(lines, rows=1, activations="bf16", scheme="int4-g32"):
    """The operations: kinds, results, operands and weights."""
    (function,) = parse_graph("\n".join([HEAD, *lines, "}"])).functions
    values = [*function.parameters, *(value for o in function.operations for value in o.results)]
    shapes = {v.name: tuple(rows if size == "tokens" else size for size in v.type.shape) for v in values}
    stored = SimpleNamespace(scheme=replace(SCHEMES[scheme], activations=activations))
    names = {name for o in function.operations for name in o.weights}
    context = Context(shapes, {}, dict.fromkeys(names, stored), None)
    return fuse_layers.fuse_layers(function, context)


def told(function):
    return [
        f"{', '.join(value.name for value in o.results)} = {o.kind}({', '.join(o.operands)}; {', '.join(o.weights)})"
        for o in function.operations
    ]


def test_a_block_of_a_step():
    function = fused(BLOCK)
    assert told(function) == [
        "t, t.squares, t.scaled = fused_linear(x, r; w.32.64, , g.32)",
        "h = fused_linear(t.scaled, t.squares; w.96.32, b.96)",
        "d = linear(h; w.32.48, )",
        "y = add(t, d; )",
    ]
    first, second = function.operations[:2]
    assert first.also[0].type.shape[1] == second.integer("partials")
    assert second.number("epsilon") == 0.1
    assert (first.text("gate"), second.text("gate")) == ("", "silu")


def test_without_a_gain_the_total_is_read():
    function = fused([OUT, NORM.replace("g.32", "-"), UP, GATE, DOWN, LAST])
    assert told(function)[:2] == [
        "t, t.squares = fused_linear(x, r; w.32.64, )",
        "h = fused_linear(t, t.squares; w.96.32, b.96)",
    ]


@pytest.mark.parametrize("options", [{"rows": 9, "scheme": "bf16"}, {"activations": "mxfp8", "scheme": "fp8"}])
def test_layers_that_are_no_gemvs_or_round_what_norms_make_gate_alone(options):
    assert told(fused(BLOCK, **options)) == [
        "o = linear(x; w.32.64, )",
        "n, t = add_rms_norm(r, o; g.32)",
        "h = fused_linear(n; w.96.32, b.96)",
        "d = linear(h; w.32.48, )",
        "y = add(t, d; )",
    ]


def test_gemms_that_decode_leave_gates_alone():
    assert "fused_linear" not in {o.kind for o in fused(BLOCK, rows=9).operations}


def test_up_to_eight_rows():
    assert "fused_linear" in {o.kind for o in fused(BLOCK, rows=8).operations}


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ((OUT, NORM, UP, GATE, DOWN, "  e = add(d, n) : f32[tokens, 32]", LAST.replace("d)", "e)")), "add_rms_norm"),
        ((OUT, NORM, UP, GATE, DOWN, "  e = add(d, o) : f32[tokens, 32]", LAST.replace("d)", "e)")), "add_rms_norm"),
        ((NORM.replace("(r, o", "(r, r"), UP, GATE, DOWN, LAST), "add_rms_norm"),
        ((OUT, NORM.replace("(r, o", "(o, o"), UP, GATE, DOWN, LAST), "add_rms_norm"),
        ((OUT, NORM.replace("n, t", "y, t")), "add_rms_norm"),
        (
            (*BLOCK[:5], "  s = slice(p) {start = 0, stop = 32} : f32[tokens, 32]", LAST.replace("t, d", "s, d")),
            "gated_pair",
        ),
        (
            (OUT, NORM, UP.replace("96", "90"), GATE.replace("48", "45"), DOWN.replace("48", "45"), LAST),
            "gated_pair",
        ),
    ],
    ids=[
        *("the norm is read elsewhere", "the layer is read elsewhere", "no layer before", "twice the layer"),
        *("the norm is the result", "the gate's input is read elsewhere", "halves of parts of 8 rows"),
    ],
)
def test_what_others_read_stays(lines, kept):
    assert kept in {operation.kind for operation in fused(lines).operations}
