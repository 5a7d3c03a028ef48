"""compiler/interpret.py: taps, widths and the paged cache.

That operators mean what they should is seen against transformers, in tests/models/test_decoder.py and test_bert.py.
"""

import numpy as np
import pytest

from pyc.compiler.interpret import Interpreter
from pyc.compiler.text import parse_graph

GRAPH = parse_graph("""
forward(ids: i32[tokens], positions: i32[tokens], sequences: i32[tokens], block_table: i32[2, 4]) -> %3 {
  %0 = embedding(ids; embed) : f32[tokens, 24]
  %1 = slice(%0) {start = 0, stop = 16} : f32[tokens, 16]
  %2 = slice(%0) {start = 16, stop = 24} : f32[tokens, 8]
  %3 = attention(%1, %2, %2, positions, sequences, block_table) """
    """{head_dim = 4, heads = 4, kv_heads = 2, layer = 0, scale = 0.5, window = 0} : f32[tokens, 16]
}
""")
EMBED = np.random.default_rng(0).normal(size=(32, 24))
TABLE = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
SHUFFLED = np.array([[6, 1, 0, 3], [2, 7, 4, 5]])


def rows(ids, positions, sequence=0, table=TABLE):
    sequences = np.full(len(ids), sequence)
    return {"ids": np.array(ids), "positions": np.array(positions), "sequences": sequences, "block_table": table}


def softmax_attention(ids):
    """Each row's attention over the rows up to it, head by head."""
    x = EMBED[ids]
    q, kv = x[:, :16].reshape(-1, 4, 4), x[:, 16:].reshape(-1, 2, 4)
    result = np.zeros_like(q)
    for row in range(len(ids)):
        for head in range(4):
            keys = kv[: row + 1, head // 2]
            powers = np.exp(keys @ q[row, head] * 0.5)
            result[row, head] = powers / powers.sum() @ keys
    return result.reshape(-1, 16)


IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.mark.parametrize("table", [TABLE, SHUFFLED], ids=["in order", "shuffled"])
@pytest.mark.parametrize("chunks", [[10], [4, 6], [1] * 10], ids=str)
def test_the_cache_is_where_the_block_table_says(table, chunks):
    interpreter, start, found = Interpreter(GRAPH, {"embed": EMBED}, block_tokens=3), 0, []
    for count in chunks:
        positions = list(range(start, start + count))
        interpreter.run("forward", rows([31] * count, positions, 1, table))  # the other sequence
        found.append(interpreter.run("forward", rows(IDS[start : start + count], positions, 0, table)))
        start += count
    assert np.abs(np.concatenate(found) - softmax_attention(IDS)).max() < 1e-12


def test_padding_writes_nothing():
    interpreter = Interpreter(GRAPH, {"embed": EMBED}, block_tokens=3)
    interpreter.run("forward", rows(IDS[:3], [0, 1, 2]))
    found = interpreter.run("forward", rows([IDS[3], 7, 7], [3, -1, -1]))
    assert np.abs(found[0] - softmax_attention(IDS[:4])[3]).max() < 1e-12


def test_a_tap_sees_every_value_in_order():
    seen = {}
    interpreter = Interpreter(GRAPH, {"embed": EMBED}, tap=seen.__setitem__)
    result = interpreter.run("forward", rows(IDS, range(10)))
    assert list(seen) == ["%0", "%1", "%2", "%3"]
    assert np.array_equal(seen["%0"], EMBED[IDS])
    assert seen["%3"] is result


def test_float32_is_float32_throughout():
    dtypes = []
    interpreter = Interpreter(GRAPH, {"embed": EMBED}, is_float32=True, tap=lambda _, value: dtypes.append(value.dtype))
    result = interpreter.run("forward", rows(IDS, range(10)))
    assert set(dtypes) == {np.dtype(np.float32)}
    assert 0 < np.abs(result - softmax_attention(IDS)).max() < 1e-5


def test_versions_further_results_and_meanings_of_others():
    text = """
double(x: f32[tokens, 2]) -> %1 {
  %1 = add(x, x) : f32[tokens, 2]
}
double.other(x: f32[tokens, 2]) -> %1 {
  %0, %1 = both(x) : f32[tokens, 2], f32[tokens, 2]
}
"""
    seen = {}
    both = {"both": lambda operation, x, w: (-x[0], 2 * x[0])}
    interpreter = Interpreter(parse_graph(text), {}, tap=seen.__setitem__, meanings=lambda cache: both)
    x = np.array([[1.0, 2.0]])
    assert interpreter.run("double", {"x": x}).tolist() == interpreter.run("double", {"x": x}, "other").tolist()
    assert seen["%0"].tolist() == [[-1, -2]]
