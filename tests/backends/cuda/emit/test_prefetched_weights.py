"""backends/cuda/emit/prefetched_weights.py: weights of the layers behind attention, as far as there is room."""

from types import SimpleNamespace

import pytest

from pyc.backends.cuda.emit import prefetched_weights
from pyc.backends.cuda.emit.calls import Context
from pyc.compiler.text import parse_graph

HEAD = (
    "forward(p: f32[tokens, 128], angles: f32[tokens, 16], positions: i32[tokens], sequences: i32[tokens], "
    "table: i32[5, 4]) -> y {"
)
ATTEND = (
    "  a = append_attention(p, angles, positions, sequences, table; q, k) "
    "{epsilon = 0.1, head_dim = 32, heads = 2, kv_heads = 1, layer = 3, scale = 0.5, window = 0} : f32[tokens, 64]"
)
LAYERS = [f"  {to} = linear({x}; {to}.w, -) : f32[tokens, 64]" for x, to in (("a", "o"), ("o", "u"), ("u", "y"))]


def fetched(sizes, rows=1):
    (function,) = parse_graph("\n".join([HEAD, ATTEND, *LAYERS, "}"])).functions
    weights = {f"{name}.w": SimpleNamespace(size_bytes=size) for name, size in zip("ouy", sizes, strict=True)}
    context = Context({"p": (rows, 128)}, {}, weights, None)
    return prefetched_weights.with_prefetched_weights(function, context).prefetched


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ((1000, 2000, 3000), (("o.w", 992), ("u.w", 2000))),
        ((16 << 20, 16 << 20, 100), (("o.w", 16 << 20), ("u.w", 8 << 20))),
        ((32 << 20, 100, 100), (("o.w", 24 << 20),)),
    ],
    ids=["two layers", "what has room", "a part of one"],
)
def test_weights_of_what_follows(sizes, taken, monkeypatch):
    monkeypatch.setattr(prefetched_weights, "is_chosen", True)
    assert fetched(sizes) == {"a": taken}


def test_several_rows_fetch_nothing(monkeypatch):
    monkeypatch.setattr(prefetched_weights, "is_chosen", True)
    assert fetched((100, 100, 100), rows=2) == {}


def test_it_is_not_chosen_yet():
    assert fetched((100, 100, 100)) == {}
