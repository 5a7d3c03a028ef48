"""backends/cpu/passes/fuse_quantize.py: what alone a quantizer reads makes the quantized rows itself."""

import pytest

from pyc.backends.cpu.passes.fuse_quantize import FuseQuantize

GRAPH = """\
f(x: f32[tokens, 64]) -> y {
  n = rms_norm(x; gain.64) {epsilon = 1e-06} : f32[tokens, 64]
  z = add(x, x) : f32[tokens, 64]
  q = quantize_rows(n) {row_format = "interleaved"} : u8[tokens, 192]
  p = linear_quantized(q; w.64.64, -) {features = 64, row_format = "interleaved"} : f32[tokens, 64]
  y = add(p, z) : f32[tokens, 64]
}"""


def test_a_norm_makes_records(rewrite):
    assert rewrite(FuseQuantize(), GRAPH) == """\
f(x: f32[tokens, 64]) -> y {
  q = rms_norm_quantize(x; gain.64) {epsilon = 1e-06, row_format = "interleaved"} : u8[tokens, 192]
  z = add(x, x) : f32[tokens, 64]
  p = linear_quantized(q; w.64.64, -) {features = 64, row_format = "interleaved"} : f32[tokens, 64]
  y = add(p, z) : f32[tokens, 64]
}"""


@pytest.mark.parametrize("row_format", ["float_scale", "power_of_two", "interleaved"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rms_norm(x; -) {epsilon = 0.1}", "rms_norm_quantize(x; -) {epsilon = 0.1, row_format}"),
        ("layer_norm(x; g.64, b.64) {epsilon = 0.1}", "layer_norm_quantize(x; g.64, b.64) {epsilon = 0.1, row_format}"),
        ('activation(x) {function = "gelu"}', 'activation_quantize(x) {function = "gelu", row_format}'),
        ('gated(x, x) {function = "silu"}', 'gated_quantize(x, x) {function = "silu", row_format}'),
        ('gated_pair(twice) {function = "relu"}', 'gated_pair_quantize(twice) {function = "relu", row_format}'),
    ],
)
def test_norms_activations_and_gates_do(rewrite, before, after, row_format):
    head, tail = "f(x: f32[tokens, 64], twice: f32[1, 128]) -> q {", "}"
    rows = 1 if "twice" in before else "tokens"
    kind = f'row_format = "{row_format}"'
    lines = [f"  n = {before} : f32[{rows}, 64]", f"  q = quantize_rows(n) {{{kind}}} : u8[{rows}, 192]"]
    fused = f"  q = {after.replace('row_format', kind)} : u8[{rows}, 192]"
    assert rewrite(FuseQuantize(), "\n".join([head, *lines, tail])) == "\n".join([head, fused, tail])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = add(p, z)", "y = add(p, n)"),
        ("y = add(p, z)", 'q2 = quantize_rows(n) {row_format = "float_scale"} : u8[tokens, 192]\n  y = add(p, z)'),
        ("f(x: f32[tokens, 64]) -> y", "f(x: f32[tokens, 64]) -> n"),
        ("n = rms_norm(x; gain.64) {epsilon = 1e-06}", "n = add(x, x)"),
        ("quantize_rows(n)", "quantize_rows(x)"),
    ],
)
def test_what_others_read_or_no_kernel_does_is_left(rewrite, old, new):
    assert old in GRAPH
    text = GRAPH.replace(old, new)
    assert rewrite(FuseQuantize(), text) == text
