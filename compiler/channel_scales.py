"""Factors s for the input channels of matrices, W diag(s) and x / s: the same products, and less lost by rounding.

AWQ (arXiv:2306.00978): s = m^a, m the mean magnitude of each channel of x, and of a = 0, 1/20, ... the one with the
least squared error of the products, ||(Q(W diag(s)) diag(s)^-1 - W) x||^2. A channel that is multiplied is rounded more
finely.

SmoothQuant (arXiv:2211.10438): s = max |x|^a / max |W|^(1 - a) of each channel, which moves outliers of activations
that are rounded to int8 into weights. a is the strength of the migration.

s of AWQ is divided by the root of its largest times its least. Channels that are always zero keep theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Quantized
from pyc.runtime.errors import QuantizeError

GRID = 20
"""Exponents that AWQ tries."""

LEAST = 1e-4
"""Factors are no smaller, before they are divided."""


def shared(values: Floats, heads: int, groups: int) -> Floats:
    """Return means over what reads the same channel: [heads * groups * d] of queries' heads as [heads * d]."""
    found: Floats = values.reshape(heads, groups, -1).mean(1).reshape(-1).astype(np.float32)
    return found


def spread(values: Floats, heads: int, groups: int) -> Floats:
    """Return channels [heads * d] for all that reads them, [heads * groups * d]."""
    return np.repeat(values.reshape(heads, 1, -1), groups, axis=1).reshape(-1)


def awq_scales(
    magnitude: Floats,
    gram_matrix: Floats,
    matrices: Sequence[tuple[Floats, Quantized]],
    heads: tuple[int, int] = (1, 1),
) -> Floats:
    """Return s f32 [K] for matrices [N, K] that read the same inputs of mean magnitudes [K] and with X' X [K, K].

    With `heads` (h, g) channels are those of h heads of values that g heads of queries read each, and share s. Raises
    QuantizeError for inputs that are not finite, and as `quantize_rows` does.
    """
    _require_finite(magnitude, gram_matrix)
    given = shared(magnitude, *heads)
    best, least = np.ones(len(magnitude), np.float32), np.inf
    for index in range(GRID):
        s = np.maximum(given ** np.float32(index / GRID), np.float32(LEAST))
        s = np.where(given > 0, s / np.sqrt(s.max() * s.min()), np.float32(1)).astype(np.float32)
        s = spread(s, *heads)
        error = sum(_lost(rows, scheme, s, gram_matrix) for rows, scheme in matrices)
        if error < least:
            best, least = s, error
    return best


def _lost(rows: Floats, scheme: Quantized, s: Floats, gram_matrix: Floats) -> float:
    """The squared error of a matrix's products."""
    missed = dequantize_rows(quantize_rows(rows * s, scheme), scheme) / s - rows
    return float(np.einsum("nk,nk->", missed @ gram_matrix, missed, dtype=np.float64))


def smoothing_scales(largest: Floats, matrices: Sequence[Floats], strength: float) -> Floats:
    """Return s f32 [K] for matrices [N, K] that read the same inputs, whose largest magnitudes [K] are given.

    Raises QuantizeError for inputs that are not finite.
    """
    _require_finite(largest)
    weights = np.max([np.abs(rows).max(axis=0) for rows in matrices], axis=0)
    heard = (largest > 0) & (weights > 0)
    x, w = np.where(heard, largest, 1), np.where(heard, weights, 1)
    found: Floats = (x**strength / w ** (1 - strength)).astype(np.float32)
    return np.where(heard, found, np.float32(1))


def _require_finite(*values: Floats) -> None:
    if not all(np.isfinite(each).all() for each in values):
        raise QuantizeError("the activations of the calibration text contain NaN or infinity")
