"""compiler/mxfp8.py against the nearest of all numbers of e4m3, in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mxfp8_reference import E4M3, mxfp8

from pyc.compiler.mxfp8 import mxfp8_rounded

SPECIAL = st.sampled_from([0.0, -0.0, 448.0, 449.0, 464.0, 2.0**-149, 2.0**-126, 2.0**-117, 3e38, -1.0625, 1.1875])
LARGEST = 1.9375 * 2.0**127 - 2.0**104
"""Above it numbers round to 2^128, which is infinity in f32."""
NUMBERS = st.one_of(st.floats(-LARGEST, LARGEST, width=32), st.floats(-512, 512, width=32), SPECIAL)


@given(arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 70)), elements=NUMBERS, fill=st.nothing()))
def test_rounds_to_the_nearest(x):
    found = mxfp8_rounded(x)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, mxfp8(x))
    np.testing.assert_array_equal(mxfp8_rounded(x.astype(np.float64)), found)
    np.testing.assert_array_equal(mxfp8_rounded(found), mxfp8(found.astype(np.float64)))


@pytest.mark.parametrize("power", [-116, -100, -1, 0, 1, 118, 119])
def test_rounds_to_the_nearest_beside_every_tie(power):
    """The floats up to 8 away from each tie and from each number, beside a number that the scale is of."""
    exact = np.concatenate([E4M3, (E4M3[1:] + E4M3[:-1]) / 2]).astype(np.float32)
    bits = exact.view(np.int32)[:, None] + np.arange(-8, 9)
    near = np.maximum(bits, 0).astype(np.int32).view(np.float32).ravel()
    near = np.minimum(np.concatenate([near, -near]), 448)
    blocks = np.pad(near, (0, -len(near) % 31)).reshape(-1, 31)
    x = np.ldexp(np.pad(blocks, ((0, 0), (1, 0)), constant_values=448), power).astype(np.float32)
    found = mxfp8_rounded(x)
    np.testing.assert_array_equal(found, mxfp8(x))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


@given(arrays(np.float32, (1, 32), elements=NUMBERS, fill=st.nothing()))
def test_a_rounded_number_is_one_of_bf16_and_none_is_subnormal(x):
    found = mxfp8_rounded(x)
    assert not (found.view(np.uint32) & 0xFFFF).any()
    assert (np.abs(found[found != 0]) >= 2.0**-125).all()
    largest = float(np.abs(x).max())
    error = np.abs(found.astype(np.float64) - x)
    assert (error <= 2.0**-4 * np.abs(x) + max(largest * 2.0**-17, 2.0**-126)).all()


def test_numbers_of_e4m3_stay_as_they_are():
    rows = np.concatenate([E4M3, -E4M3, E4M3[:2]]).reshape(8, 32)
    rows[:, 0] = 448
    for power in (-60, 0, 60):
        np.testing.assert_array_equal(mxfp8_rounded(rows * 2.0**power), rows * 2.0**power)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_fault_makes_its_block_nan(bad):
    x = np.ones((2, 70), np.float32)
    x[1, 40] = bad
    found = mxfp8_rounded(x)
    assert np.isnan(found[1, 32:64]).all()
    assert np.isnan(found).sum() == 32
