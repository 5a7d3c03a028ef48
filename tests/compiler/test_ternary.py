"""compiler/ternary.py against every choice of codes."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES
from pyc.compiler.ternary import ternary_tile

TERNARY = SCHEMES["ternary"]


@given(hnp.arrays(np.float32, (2, 6), elements=st.floats(-100, 100, width=16)))
def test_no_other_codes_and_scale_are_nearer(rows):
    codes, scale = np.empty(rows.shape, np.uint8), np.empty((2, 1), np.float32)
    ternary_tile(rows, codes, scale)
    assert codes.max() <= 2
    every = np.array(list(product((-1.0, 0.0, 1.0), repeat=6)))
    for row, code, d in zip(rows.astype(np.float64), codes, scale[:, 0].astype(np.float64), strict=True):
        fits = (every @ row) / np.maximum((every**2).sum(1), 1)  # the best scale of each choice
        least = np.square(row - fits[:, None] * every).sum(1).min()
        assert np.square(row - d * (code - 1.0)).sum() <= least + 1e-6 * np.square(row).sum()


def test_ternary_weights_stay_as_they_are():
    rng = np.random.default_rng(0)
    rows = (rng.integers(-1, 2, (40, 96)) * rng.uniform(0.01, 3, (40, 1))).astype(np.float32)
    rows[7] = 0
    stored = quantize_rows(rows, TERNARY)
    np.testing.assert_allclose(dequantize_rows(stored, TERNARY), rows, rtol=1e-6)
    assert np.array_equal(np.sign(rows) + 1, stored.codes)
