"""Coordinate descent: codes that are there already are chosen again, one column at a time, given all others.

Rows w of W [N, K] are rounded to q, which loses (w - q) H (w - q)'. With all other columns as they are, the best value
of column j is q_j + ((w - q) H)_j / H_jj, and its code becomes the nearest one. So no step loses more than before, and
GPTQ's codes, each chosen when those behind it were not, are chosen again (CDQuant, arXiv:2406.17542, in cyclic order).

Scales, zero points and tables stay. Columns come in the order of `gptq.Hessian`, SWEEPS times. Arithmetic is f32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pyc.compiler.gptq import Hessian, group_of_columns, nearest_codes
from pyc.compiler.quantization import QuantizedRows, dequantize_rows
from pyc.compiler.scales import Floats, divisor
from pyc.compiler.schemes import Quantized

SWEEPS = 2
"""More lose half a hundredth less."""

BLOCK = 64
"""Columns whose steps are gathered before the others hear of them."""


def descend(rows: Floats, stored: QuantizedRows, scheme: Quantized, hessian: Hessian) -> QuantizedRows:
    """Return `stored`, codes of f32 rows [N, K], with codes that lose no more under `hessian`'s H."""
    if hessian.correction is not None:
        rows = rows + rows @ hessian.correction
    inputs = rows.shape[1]
    group = group_of_columns(scheme, inputs)
    nearest = nearest_codes(stored, scheme, group)
    scales = np.ascontiguousarray(stored.group_scales.T)
    divisors = divisor(scales)
    h, diagonal = hessian.damped, np.diag(hessian.damped)
    values = np.ascontiguousarray(dequantize_rows(stored, scheme).T)
    codes = np.ascontiguousarray(stored.codes.T)
    pull = h @ (np.ascontiguousarray(rows.T) - values)
    for _ in range(SWEEPS):
        for start in range(0, inputs, BLOCK):
            block = hessian.order[start : start + BLOCK]
            own, beside = pull[block], h[np.ix_(block, block)]
            steps = np.empty_like(own)
            for index, column in enumerate(block.tolist()):
                wanted = values[column] + own[index] / diagonal[column]
                codes[column], unscaled = nearest(wanted / divisors[column // group], column)
                value = scales[column // group] * unscaled
                steps[index] = value - values[column]
                values[column] = value
                own[index + 1 :] -= beside[index + 1 :, index, None] * steps[index]
            pull -= h[:, block] @ steps
    return replace(stored, codes=np.ascontiguousarray(codes.T))
