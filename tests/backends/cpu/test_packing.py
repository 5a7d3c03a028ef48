"""backends/cpu/packing.py: panels hold what is stored, however they are cut; test_layouts.py has the bytes."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_files import write_source

from pyc.backends.cpu import packing
from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.cpu.packing import unpack_rows
from pyc.compiler.evaluate import evaluate_stored
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.quantization import QuantizedRows, dequantize_rows
from pyc.compiler.schemes import SCHEMES, Dense
from pyc.compiler.weights import Blended, LowRank, Packed, ScaledColumns, ScaledRows, Stacked, Stored

ROWS, COLUMNS, RANK = 37, 64, 3


def evaluate_panels(packed, start, stop):
    with SourceFiles() as files:
        return packing.evaluate_panels(packed, start, stop, files)


@pytest.fixture(scope="module")
def expressions(tmp_path_factory):
    """Expressions of several kinds, over seeded values."""
    folder, random = tmp_path_factory.mktemp("sources"), np.random.default_rng(5)

    def drawn(*shape, dtype="f32"):
        return write_source(folder / f"{len(list(folder.iterdir()))}", random.normal(size=shape), dtype)

    low_rank = LowRank(drawn(ROWS, COLUMNS), drawn(RANK, COLUMNS), drawn(ROWS, RANK), 1.7)
    factors = drawn(ROWS)
    return {
        "source": drawn(ROWS, COLUMNS, dtype="bf16"),
        "low-rank": low_rank,
        "rows": ScaledRows(drawn(ROWS, COLUMNS, dtype="f64"), factors),
        "nested": ScaledColumns(ScaledRows(low_rank, Blended(factors, 0.3)), drawn(COLUMNS)),
    }


STORED = [*(name for name in SCHEMES if name != "none" and "-g128" not in name), "stack"]


def stored_expression(expressions, name):
    if name == "stack":
        scheme = SCHEMES["int4-g32-asym"]
        return Stacked(tuple(Stored(expressions[kind], scheme) for kind in ("source", "low-rank", "rows")))
    return Stored(expressions["nested"], SCHEMES[name])


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("name", STORED)
def test_panels_do_not_depend_on_how_they_are_cut(expressions, name, data):
    packed = Packed(stored_expression(expressions, name), "panel16")
    panels = -(-packed.shape[0] // 16)
    cuts = data.draw(st.lists(st.integers(0, panels), max_size=3).map(sorted))
    edges = list(itertools.pairwise([0, *cuts, panels]))
    pieces = [evaluate_panels(packed, start, stop) for start, stop in edges if start < stop]
    whole = evaluate_panels(packed, 0, panels)
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("name", STORED)
def test_panels_hold_what_is_stored(expressions, name):
    expression = stored_expression(expressions, name)
    rows = expression.shape[0]
    with SourceFiles() as files:
        stored = evaluate_stored(expression, 0, rows, files)
    scheme = expression.parts[0].scheme if isinstance(expression, Stacked) else expression.scheme
    values = unpack_rows(
        evaluate_panels(Packed(expression, "panel16"), 0, -(-rows // 16)), panel_layout(scheme, COLUMNS), rows
    )
    if isinstance(stored, QuantizedRows):
        assert not isinstance(scheme, Dense)
        assert np.array_equal(values, dequantize_rows(stored, scheme))
    else:
        plain = stored.view(ml_dtypes.bfloat16) if stored.dtype == np.uint16 else stored
        assert np.array_equal(values, plain.astype(np.float32))
