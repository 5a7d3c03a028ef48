"""backends/cpu/passes/fuse_attention_quantize.py: attention makes quantized rows itself, where the tile unit
attends."""

import pytest

from pyc.backends.cpu.passes.fuse_attention_quantize import FuseAttentionQuantize

HEAD = "(x: f32[tokens, 64], positions: i32[tokens], sequences: i32[tokens], table: i32[5, 4], row: i32[1]) -> y {"
APPEND = (
    "  queries = linear_append(x, angles, positions, sequences, table; w.128.64, -, -, -) "
    "{epsilon = 0.0, head_dim = 32, heads = 2, kv_heads = 1, layer = 0} : f32[tokens, 64]"
)
LINES = (
    "  angles = rope_angles(positions; frequencies.8) "
    "{base = 10.0, dynamic = 0, factor = 1.0, original_context = 64, scale = 1.0} : f32[tokens, 16]",
    APPEND,
    "  a = cached_attention(queries, positions, sequences, table) "
    "{head_dim = 32, heads = 2, kv_heads = 1, layer = 0, scale = 0.5, window = 0} : f32[tokens, 64]",
    '  q = quantize_rows(a) {row_format = "float_scale"} : u8[tokens, 192]',
    '  y = linear_quantized(q; v.64.64, -) {features = 64, row_format = "float_scale"} : f32[tokens, 64]',
)
FUSED = (
    "  q = cached_attention_quantize(queries, positions, sequences, table) "
    '{head_dim = 32, heads = 2, kv_heads = 1, layer = 0, row_format = "float_scale", '
    'scale = 0.5, window = 0} : u8[tokens, 192]'
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


def test_a_version_has_the_two_as_one(rewrite):
    after = function(*LINES[:2], FUSED, LINES[4], version=".amx")
    assert rewrite(FuseAttentionQuantize(), function(*LINES)) == f"{function(*LINES)}\n{after}"


@pytest.mark.parametrize(
    "lines",
    [
        (*LINES, "  z = add(a, y) : f32[tokens, 64]"),
        changed(LINES, ("head_dim = 32, heads = 2, kv_heads = 1", "head_dim = 16, heads = 4, kv_heads = 2")),
        (
            *LINES[:2],
            "  o = select_row(queries, row) : f32[1, 64]",
            *changed(LINES[2:], ("[tokens,", "[1,"), ("queries, positions, sequences", "o, row, row")),
        ),
        (*LINES[:2], "  a = add(x, queries) : f32[tokens, 64]", *LINES[3:]),
    ],
    ids=["read elsewhere", "heads of half a group", "one row", "no attention"],
)
def test_no_version(rewrite, lines):
    assert rewrite(FuseAttentionQuantize(), function(*lines)) == function(*lines)
