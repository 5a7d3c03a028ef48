"""backends/cpu/passes/fuse_add_norm.py: a sum is added by the norm that is the first to read it, perhaps in place."""

import pytest

from pyc.backends.cpu.passes.fuse_add_norm import FuseAddNorm

GRAPH = """\
f(a: f32[tokens, 64], b: f32[tokens, 64]) -> y {
  old = activation(a) {function = "silu"} : f32[tokens, 64]
  new = activation(b) {function = "silu"} : f32[tokens, 64]
  x = add(old, new) : f32[tokens, 64]
  z = activation(b) {function = "relu"} : f32[tokens, 64]
  q = rms_norm_quantize(x; gain.64) {epsilon = 1e-06, row_format = "interleaved"} : u8[tokens, 192]
  p = linear_quantized(q; w.64.64, -) {features = 64, row_format = "interleaved"} : f32[tokens, 64]
  y = add(x, p) : f32[tokens, 64]
}"""
FUSED = (
    '  q, x = add_rms_norm_quantize(old, new; gain.64) {epsilon = 1e-06, in_place = true, row_format = "interleaved"} '
    ": u8[tokens, 192], f32[tokens, 64]"
)


def lines_of(text):
    return text.splitlines()


def test_a_sum_and_its_norm_are_one(rewrite):
    lines = lines_of(GRAPH)
    wanted = [*lines[:3], lines[4], FUSED, *lines[6:]]
    assert lines_of(rewrite(FuseAddNorm(), GRAPH)) == wanted


def test_layer_norms_too(rewrite):
    text = GRAPH.replace("rms_norm_quantize(x; gain.64)", "layer_norm_quantize(x; gain.64, bias.64)")
    assert "q, x = add_layer_norm_quantize(old, new; gain.64, bias.64) {" in rewrite(FuseAddNorm(), text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("z = activation(b)", "z = activation(x)"),  # reads the sum before the norm
        ("x = add(old, new)", 'x = gated(old, new) {function = "silu"}'),
        ("quantize(x; gain.64)", "quantize(a; gain.64)"),
        ("rms_norm_quantize(x; gain.64) {epsilon = 1e-06,", 'activation_quantize(x) {function = "silu",'),
    ],
)
def test_other_sums_are_left(rewrite, old, new):
    assert old in GRAPH
    text = GRAPH.replace(old, new)
    assert rewrite(FuseAddNorm(), text) == text


def test_only_the_first_norm_of_a_sum_adds(rewrite):
    again = '  r = rms_norm_quantize(x; -) {epsilon = 0.5, row_format = "float_scale"} : u8[tokens, 192]\n  y = add('
    text = rewrite(FuseAddNorm(), GRAPH.replace("  y = add(", again))
    assert text.count("add_rms_norm_quantize") == 1
    assert "r = rms_norm_quantize(x; -)" in text


@pytest.mark.parametrize("name", ["old", "new"])
def test_an_addend_that_was_read_before_is_in_place(rewrite, name):
    assert "in_place = true" in rewrite(FuseAddNorm(), GRAPH.replace("z = activation(b)", f"z = activation({name})"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = add(x, p)", "y = add(x, old)"),
        ("y = add(x, p)", "y = add(x, new)"),
        (") -> y {", ") -> old {"),
        (") -> y {", ") -> new {"),
        ("x = add(old, new)", "x = add(old, old)"),
        ("x = add(old, new)", "x = add(a, new)"),
        ("x = add(old, new)", "x = add(old, b)"),
    ],
)
def test_an_addend_that_is_read_again_or_the_callers_stays_where_it_is(rewrite, old, new):
    assert old in GRAPH
    text = rewrite(FuseAddNorm(), GRAPH.replace(old, new))
    assert text.count("in_place = false") == 1
    assert "in_place = true" not in text


def test_an_addend_that_a_later_norm_adds_stays_where_it_is(rewrite):
    """Both sums stand before both norms; the second is made after the first norm."""
    second = "  u = add(new, a) : f32[tokens, 64]"
    norm = '  r = rms_norm_quantize(u; -) {epsilon = 0.5, row_format = "float_scale"} : u8[tokens, 192]'
    matmul = '  s = linear_quantized(r; w.64.64, -) {features = 64, row_format = "float_scale"} : f32[tokens, 64]'
    lines = lines_of(GRAPH.replace("add(x, p)", "add(s, p)"))
    text = rewrite(FuseAddNorm(), "\n".join([*lines[:4], second, *lines[4:7], norm, matmul, *lines[7:]]))
    assert text.count("in_place = false") == 2
