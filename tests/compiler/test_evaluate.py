"""compiler/evaluate.py: rows of expressions against a float64 interpreter, whatever rows are asked for.

Each f32 operation rounds once (2^-24 of the result): a sum or product of two rounded values is within 4 * 2^-24 of
what float64 makes of the same sources. A low-rank update is summed in float64 and rounded once.
"""

import itertools

import numpy as np
import pytest
from graph_interpreter import value_of
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_files import source, write_source

from pyc.compiler import evaluate
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.schemes import Dense
from pyc.compiler.weights import (
    Blended,
    Constant,
    LowRank,
    ScaledColumns,
    ScaledRows,
    Stacked,
    Stored,
    Transposed,
)
from pyc.runtime.errors import IngestError, QuantizeError

__all__ = ["source"]

ULP = 2.0**-24
ROWS, COLUMNS, RANK = 37, 64, 3
MATRICES = ("source", "low-rank", "columns", "rows", "nested", "stack")


def opened(evaluated):
    """A function of compiler.evaluate with the files of its expression open while it runs."""

    def run(expression, start, stop):
        with SourceFiles() as files:
            return evaluated(expression, start, stop, files)

    return run


evaluate_rows, evaluate_stored = map(opened, (evaluate.evaluate_rows, evaluate.evaluate_stored))


@pytest.fixture(scope="module")
def expressions(tmp_path_factory):
    """One expression of every kind, over seeded values."""
    folder, random = tmp_path_factory.mktemp("sources"), np.random.default_rng(5)

    def drawn(*shape, dtype="f32"):
        return write_source(folder / f"{len(list(folder.iterdir()))}", random.normal(size=shape), dtype)

    matrix = drawn(ROWS, COLUMNS, dtype="bf16")
    low_rank = LowRank(drawn(ROWS, COLUMNS), drawn(RANK, COLUMNS), drawn(ROWS, RANK), 1.7)
    factors = drawn(ROWS)
    return {
        "source": matrix,
        "low-rank": low_rank,
        "columns": ScaledColumns(drawn(ROWS, COLUMNS, dtype="f16"), drawn(COLUMNS)),
        "rows": ScaledRows(drawn(ROWS, COLUMNS, dtype="f64"), factors),
        "nested": ScaledColumns(ScaledRows(low_rank, Blended(factors, 0.3)), drawn(COLUMNS)),
        "stack": Stacked((matrix, drawn(5, COLUMNS), drawn(1, COLUMNS), low_rank)),
        "transposed": Transposed(drawn(COLUMNS, ROWS)),
        "vector": ScaledRows(drawn(ROWS), Blended(factors, 0.3)),
        "constant": Constant((0.5, -2.0, 1e-3)),
    }


@pytest.mark.parametrize("kind", [*MATRICES, "transposed", "vector", "constant"])
def test_the_value_is_that_of_a_float64_interpreter(expressions, kind):
    expression = expressions[kind]
    got, wanted = evaluate_rows(expression, 0, expression.shape[0]), value_of(expression)
    assert got.dtype == np.float32
    assert got.shape == wanted.shape == expression.shape
    scale = np.abs(wanted).max()
    assert np.abs(got - wanted).max() <= 4 * ULP * scale
    assert scale > 0


@pytest.mark.slow
@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("kind", [*MATRICES, "transposed", "vector"])
def test_rows_do_not_depend_on_how_they_are_cut(expressions, kind, data):
    expression = expressions[kind]
    rows = expression.shape[0]
    cuts = data.draw(st.lists(st.integers(0, rows), max_size=4).map(sorted))
    edges = list(itertools.pairwise([0, *cuts, rows]))
    pieces = [evaluate_rows(expression, start, stop) for start, stop in edges if start < stop]
    assert np.array_equal(np.concatenate(pieces), evaluate_rows(expression, 0, rows))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_source_in_its_own_dtype_is_copied_bit_for_bit(source, dtype):
    values = np.array([[1e-7, -0.0, 3.14159, 65000.0 if dtype == "f16" else 1e30]])
    made = source(values, dtype)
    stored = evaluate_stored(Stored(made, Dense(dtype)), 0, 1)
    with open(made.path, "rb") as file:
        file.seek(made.offset)
        assert stored.tobytes() == file.read(made.size_bytes)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("own_dtype", [True, False])
def test_nan_and_infinity_are_refused_by_name(source, dtype, value, own_dtype):
    made = source(np.array([[1.0, 2.0], [value, 0.0]]), dtype)
    scheme = Dense(dtype if own_dtype and dtype != "f64" else "f32")
    with pytest.raises(IngestError, match=rf"{made.tensor} in .*NaN or infinity"):
        evaluate_stored(Stored(made, scheme), 0, 2)
    assert evaluate_rows(made, 0, 1).tolist() == [[1.0, 2.0]]


def test_f64_beyond_f32_is_refused(source):
    made = source(np.array([[1e300]]), "f64")
    with pytest.raises(QuantizeError, match=f"{made.tensor}: a value of 1e\\+300 does not fit f32"):
        evaluate_rows(made, 0, 1)


def test_a_file_that_shrank_is_refused(source):
    made = source(np.ones((8, 4)))
    with open(made.path, "r+b") as file:
        file.truncate(made.offset + 40)
    assert evaluate_rows(made, 0, 2).sum() == 8
    with pytest.raises(IngestError, match=r"ended at 8 of 16 bytes of rows \[2, 3\)"):
        evaluate_rows(made, 2, 3)


def test_other_dtypes_are_refused(tmp_path):
    made = write_source(tmp_path / "w", np.ones((2, 2)))
    wrong = type(made)(made.path, "w", "i64", (2, 1), made.offset, 16)
    with pytest.raises(IngestError, match=r"w in .*: dtype i64, expected f64, f32, f16 or bf16"):
        evaluate_rows(wrong, 0, 1)


@pytest.mark.slow
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 5), scale=st.floats(-4, 4))
def test_a_fused_low_rank_update_acts_as_its_parts(tmp_path_factory, seed, rank, scale):
    """fuse(W, A, B) x = W x + s B (A x), to the rounding of the fused weight (2^-24) and its sum over inputs."""
    folder, random = tmp_path_factory.mktemp("lora"), np.random.default_rng(seed)
    w, a, b = (random.normal(size=shape).astype(np.float32) for shape in ((6, 9), (rank, 9), (6, rank)))
    x = random.normal(size=9)
    parts = [write_source(folder / name, value) for name, value in (("w", w), ("a", a), ("b", b))]
    fused = evaluate_rows(LowRank(*parts, scale), 0, 6)
    wanted = w.astype(float) @ x + scale * (b.astype(float) @ (a.astype(float) @ x))
    assert np.abs(fused @ x - wanted).max() <= ULP * (np.abs(fused) @ np.abs(x)).max() * 2


@pytest.mark.slow
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), weight=st.floats(-2, 2))
def test_fused_factors_act_as_their_parts(tmp_path_factory, seed, weight):
    """l * (W x) on the output side, W (l * x) on the input side, with l = 1 + weight (factors - 1)."""
    folder, random = tmp_path_factory.mktemp("ia3"), np.random.default_rng(seed)
    w = write_source(folder / "w", random.normal(size=(6, 9)))
    out, into = (write_source(folder / name, random.normal(size=n)) for name, n in (("out", 6), ("in", 9)))
    x = random.normal(size=9)
    l_out, l_in = (1 + weight * (value_of(factors) - 1) for factors in (out, into))
    rows = evaluate_rows(ScaledRows(w, Blended(out, weight)), 0, 6)
    columns = evaluate_rows(ScaledColumns(w, Blended(into, weight)), 0, 6)
    size = np.abs(value_of(w)).max() * 9 * (1 + 3 * abs(weight)) * np.abs(x).max() * 4
    assert np.abs(rows @ x - l_out * (value_of(w) @ x)).max() <= 4 * ULP * size
    assert np.abs(columns @ x - value_of(w) @ (l_in * x)).max() <= 4 * ULP * size


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_product_beyond_f32_is_an_error_and_no_warning(source, dtype):
    scaled = ScaledColumns(source(np.full((2, 2), 3e38), "f32"), source(np.full(2, 3e38), "f32"))
    with pytest.raises(QuantizeError, match="the weights contain infinity"):
        evaluate_stored(Stored(scaled, Dense(dtype)), 0, 2)
