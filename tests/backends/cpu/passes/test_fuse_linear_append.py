"""backends/cpu/passes/fuse_linear_append.py: queries, keys and values are appended by their matmul, where it folds."""

import pytest

from pyc.backends.cpu.passes.fuse_linear_append import FuseLinearAppend

HEAD = "(x: f32[tokens, 64], positions: i32[tokens], sequences: i32[tokens], table: i32[5, 4]) -> y {"
MATMUL = "  p = linear(x; w.128.64, b.128) : f32[tokens, 128]"
ANGLES = (
    "  angles = rope_angles(positions; frequencies.8) "
    "{base = 10.0, dynamic = 0, factor = 1.0, original_context = 64, scale = 1.0} : f32[tokens, 16]"
)
APPEND = (
    "  queries = qkv_append(p, angles, positions, sequences, table; q.32, k.32) "
    "{epsilon = 0.1, head_dim = 32, heads = 2, kv_heads = 1, layer = 3} : f32[tokens, 64]"
)
ATTEND = (
    "  y = cached_attention(queries, positions, sequences, table) "
    "{head_dim = 32, heads = 2, kv_heads = 1, layer = 3, scale = 0.5, window = 0} : f32[tokens, 64]"
)
FUSED = (
    "  queries = linear_append(x, angles, positions, sequences, table; w.128.64, b.128, q.32, k.32) "
    "{epsilon = 0.1, head_dim = 32, heads = 2, kv_heads = 1, layer = 3} : f32[tokens, 64]"
)


def function(*lines, version=""):
    return "\n".join([f"f{version}{HEAD}", *lines, "}"])


def changed(lines, *pairs):
    """Lines in which each pair's first text is replaced by its second."""
    text = "\n".join(lines)
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return tuple(text.split("\n"))


def test_a_version_has_the_two_as_one_where_the_second_was(rewrite):
    before = function(MATMUL, ANGLES, APPEND, ATTEND)
    after = function(ANGLES, FUSED, ATTEND, version=".scale_folded")
    assert rewrite(FuseLinearAppend(), before) == f"{before}\n{after}"


def test_a_matmul_of_quantized_rows_without_bias_and_gains(rewrite):
    rows = '  r = quantize_rows(x) {row_format = "float_scale"} : u8[tokens, 192]'
    heads = 'head_dim = 32, heads = 2, kv_heads = 1, layer = 3'
    kept = f'{{epsilon = 0.1, features = 64, {heads}, row_format = "float_scale"}}'
    matmul = '  p = linear_quantized(r; w.128.64, -) {features = 64, row_format = "float_scale"} : f32[tokens, 128]'
    before = function(rows, matmul, ANGLES, APPEND.replace("q.32, k.32", "-, -"), ATTEND)
    fused = "  queries = linear_quantized_append(r, angles, positions, sequences, table; w.128.64, -, -, -) "
    after = function(rows, ANGLES, f"{fused}{kept} : f32[tokens, 64]", ATTEND, version=".scale_folded")
    assert rewrite(FuseLinearAppend(), before) == f"{before}\n{after}"


@pytest.mark.parametrize(
    "lines",
    [
        (MATMUL, ANGLES, APPEND, ATTEND.replace("  y =", "  z ="), "  y = add(p, p) : f32[tokens, 128]"),
        ("  p = concat(x, x) : f32[tokens, 128]", ANGLES, APPEND, ATTEND),
        changed(
            (MATMUL, ANGLES, APPEND, ATTEND),
            ("head_dim = 32, heads = 2, kv_heads = 1", "head_dim = 8, heads = 8, kv_heads = 4"),
            ("q.32, k.32", "-, -"),
            ("frequencies.8", "frequencies.4"),
            ("[tokens, 16]", "[tokens, 8]"),
        ),
        (
            "  one = select_row(x, row) : f32[1, 64]",
            *changed(
                (MATMUL, ANGLES, APPEND, ATTEND),
                ("f32[tokens,", "f32[1,"),
                ("positions", "row"),
                ("sequences", "row"),
                ("linear(x", "linear(one"),
            ),
        ),
    ],
    ids=["read elsewhere", "no matmul", "heads of half a panel", "one row"],
)
def test_no_version(rewrite, lines):
    text = function(*lines).replace(") -> y {", ", row: i32[1]) -> y {")
    assert rewrite(FuseLinearAppend(), text) == text
