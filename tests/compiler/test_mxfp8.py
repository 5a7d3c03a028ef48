"""compiler/mxfp8.py against the nearest of all numbers of e4m3, in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mxfp8_reference import E4M3, float8_rows, mxfp8

from pyc.compiler.mxfp8 import float8_rows_rounded, mxfp8_rounded

SPECIAL = st.sampled_from([0.0, -0.0, 448.0, 449.0, 464.0, 2.0**-149, 2.0**-126, 2.0**-117, 3e38, -1.0625, 1.1875])
LARGEST = 1.9375 * 2.0**127 - 2.0**104
"""Above it numbers round to 2^128, which is infinity in f32."""
NUMBERS = st.one_of(st.floats(-LARGEST, LARGEST, width=32), st.floats(-512, 512, width=32), SPECIAL)
BY_DEFINITION = {mxfp8_rounded: mxfp8, float8_rows_rounded: float8_rows}

either = pytest.mark.parametrize("rounded", BY_DEFINITION, ids=["blocks", "rows"])


@either
@given(x=arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 70)), elements=NUMBERS, fill=st.nothing()))
def test_rounds_to_the_nearest(rounded, x):
    found, expected = rounded(x), BY_DEFINITION[rounded]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected(x))
    np.testing.assert_array_equal(rounded(x.astype(np.float64)), found)
    np.testing.assert_array_equal(rounded(found), expected(found.astype(np.float64)))


@either
@given(x=arrays(np.float32, (1, 32), elements=NUMBERS, fill=st.nothing()))
def test_a_rounded_number_is_one_of_bf16_and_none_is_subnormal(rounded, x):
    found = rounded(x)
    assert not (found.view(np.uint32) & 0xFFFF).any()
    assert (np.abs(found[found != 0]) >= 2.0**-125).all()
    largest = float(np.abs(x).max())
    error = np.abs(found.astype(np.float64) - x)
    assert (error <= 2.0**-4 * np.abs(x) + max(largest * 2.0**-17, 2.0**-126)).all()


@either
def test_numbers_of_e4m3_stay_as_they_are(rounded):
    rows = np.concatenate([E4M3, -E4M3, E4M3[:2]]).reshape(8, 32)
    rows[:, 0] = 448
    for power in (-60, 0, 60):
        np.testing.assert_array_equal(rounded(rows * 2.0**power), rows * 2.0**power)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_fault_makes_its_block_nan(bad):
    x = np.ones((2, 70), np.float32)
    x[1, 40] = bad
    found = mxfp8_rounded(x)
    assert np.isnan(found[1, 32:64]).all()
    assert np.isnan(found).sum() == 32
    found = float8_rows_rounded(x)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[0], x[0])


def test_rows_share_a_power_of_two_where_blocks_have_their_own():
    """Beside 448 numbers are multiples of 2^-9."""
    x = np.concatenate([np.full(32, 448.0), np.full(32, 1.25 * 2.0**-8)])[None]
    np.testing.assert_array_equal(mxfp8_rounded(x), x)
    np.testing.assert_array_equal(float8_rows_rounded(x)[0, 32:], 2.0**-8)
    x[0, 32:] = 2.0**-11
    np.testing.assert_array_equal(mxfp8_rounded(x), x)
    np.testing.assert_array_equal(float8_rows_rounded(x)[0, 32:], 0)
