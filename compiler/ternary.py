"""Rounding to -1, 0 and 1 by one f32 scale a row (BitNet b1.58, arXiv:2402.17764, has such weights).

For a row w, d and q with the least sum of (w - d q)^2: with |w| in descending order and S_k the sum of the first k, q
is the sign of those k of which S_k^2 / k is largest, and d = f32(S_k / k); the first such k. Sums are f64. q is stored
as code q + 1; code 3 is not used. |w| of what becomes 0 is at most d / 2.
"""

from __future__ import annotations

import numpy as np

from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.scales import Bytes, Floats, divisor, require_finite

TERNARY = CODEBOOKS["ternary"]


def ternary_tile(rows: Floats, codes: Bytes, scale: Floats) -> None:
    """Quantize `rows` [rows, K] into `codes` and `scale` [rows, 1]. Raises QuantizeError for what is not finite."""
    require_finite(rows.max(initial=0), rows.min(initial=0))
    descending = np.sort(np.abs(rows), axis=1)[:, ::-1]
    sums = np.cumsum(descending, axis=1, dtype=np.float64)
    means = sums / np.arange(1, rows.shape[1] + 1)
    best = np.argmax(sums * means, axis=1)
    scale[:, 0] = means[np.arange(len(rows)), best]
    codes[...] = TERNARY.nearest(rows / divisor(scale), 0)
