"""Rounding to MXFP8 and to fp8 rows by definition: the nearest of all numbers of e4m3, in float64."""

import numpy as np

E4M3 = np.array([(m + 8 * (e > 0)) * 2.0 ** (max(e, 1) - 10) for e in range(16) for m in range(8)][:-1])
"""The numbers of codes 0 to 126."""
LEAST = -116


def mxfp8(x):
    """Return finite numbers [rows, K] rounded by blocks of 32 inputs, as f64."""
    found = np.empty(x.shape)
    for row, start in np.ndindex(len(x), -(-x.shape[1] // 32)):
        block = slice(32 * start, 32 * start + 32)
        found[row, block] = of_block(x[row, block].astype(np.float64))
    return found


def float8_rows(x):
    """Return finite numbers [rows, K] rounded by whole rows, as f64."""
    return np.array([of_block(row) for row in x.astype(np.float64)])


def of_block(block):
    exponent, largest = LEAST, float(np.abs(block).max(initial=0))
    while largest > 448 * 2.0**exponent:
        exponent += 1
    wanted = np.abs(block) / 2.0**exponent
    lower = np.clip(np.searchsorted(E4M3, wanted, side="right") - 1, 0, len(E4M3) - 2)
    below, above = wanted - E4M3[lower], E4M3[lower + 1] - wanted
    codes = lower + ((above < below) | ((above == below) & (lower % 2 == 1)))
    return np.copysign(E4M3[codes] * 2.0**exponent, block)
