"""backends/cpu/passes/fuse_linear_gated.py: a matmul of gates and values gates and quantizes, for many rows."""

import pytest

from pyc.backends.cpu.passes.fuse_linear_gated import FuseLinearGated

LINES = (
    '  q = quantize_rows(x) {row_format = "%s"} : u8[tokens, 192]',
    '  p = linear_quantized(q; w.192.64, -) {features = 64, row_format = "%s"} : f32[tokens, 192]',
    '  r = gated_pair_quantize(p) {function = "silu", row_format = "%s"} : u8[tokens, 256]',
    '  y = linear_quantized(r; v.64.96, -) {features = 96, row_format = "%s"} : f32[tokens, 64]',
)
FUSED = (
    '  r = linear_gated_quantize(q; w.192.64) {features = 64, function = "silu", makes = "%s", row_format = "%s"} '
    ": u8[tokens, 256]"
)


DOWN = "  y = linear_quantized(r; v.64.96, -)"


def function(*lines, version=""):
    return "\n".join([f"f{version}(x: f32[tokens, 64]) -> y {{", *lines, "}"])


@pytest.mark.parametrize(
    ("first", "second", "versions"),
    [
        ("interleaved", "interleaved", (".scale_folded_whole", ".amx")),
        ("float_scale", "interleaved", (".scale_folded_whole", ".amx")),
        ("interleaved", "float_scale", (".amx",)),
        ("float_scale", "float_scale", (".amx",)),
        ("power_of_two", "power_of_two", (".amx",)),
    ],
)
def test_versions_have_the_three_as_one(rewrite, first, second, versions):
    lines = [line % row_format for line, row_format in zip(LINES, (first, first, second, second), strict=True)]
    fused = [lines[0], FUSED % (second, first), lines[3]]
    wanted = [function(*lines), *(function(*fused, version=version) for version in versions)]
    assert rewrite(FuseLinearGated(), function(*lines)) == "\n".join(wanted)


def test_a_version_that_is_there_is_fused_further(rewrite):
    """As that which appends, of which the one for whole groups begins."""
    first, *rest = (line % "interleaved" for line in LINES)
    plain, marked = (
        [f"  {name} = add(x, x) : f32[tokens, 64]", first.replace("(x)", f"({name})"), *rest] for name in ("a", "b")
    )
    before = "\n".join([function(*plain), function(*marked, version=".scale_folded")])
    fused = FUSED % ("interleaved", "interleaved")
    whole = function(*marked[:2], fused, plain[4], version=".scale_folded_whole")
    tiles = function(*plain[:2], fused, plain[4], version=".amx")
    assert rewrite(FuseLinearGated(), before) == "\n".join([before, whole, tiles])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (DOWN, f"  e = add(p, p) : f32[tokens, 192]\n{DOWN}"),
        ("w.192.64, -", "w.192.64, b.192"),
        ('"silu"', '"gelu"'),
        ("u8[tokens, 192]", "u8[1, 192]"),
        ("192.64", "48.64"),
    ],
    ids=["read elsewhere", "bias", "unknown gate", "one row", "width"],
)  # fmt: skip
def test_no_version(rewrite, old, new):
    lines = [line % "interleaved" for line in LINES]
    text = function(*lines)
    assert old in text
    text = text.replace(old, new)
    if old == "u8[tokens, 192]":
        text = text.replace("[tokens,", "[1,")
    if old == "192.64":  # of 24 features
        text = text.replace("f32[tokens, 192]", "f32[tokens, 48]").replace("u8[tokens, 256]", "u8[tokens, 192]")
        text = text.replace("64.96", "64.24").replace("features = 96", "features = 24")
    assert rewrite(FuseLinearGated(), text) == text


def test_gates_of_gelu(rewrite):
    text = function(*(line % "float_scale" for line in LINES)).replace('"silu"', '"gelu_tanh"')
    fused = 'linear_gated_quantize(q; w.192.64) {features = 64, function = "gelu_tanh"'
    assert fused in rewrite(FuseLinearGated(), text)
