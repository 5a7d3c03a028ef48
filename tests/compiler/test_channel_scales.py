"""compiler/channel_scales.py against the papers' formulas in float64."""

import numpy as np
import pytest

from pyc.compiler.channel_scales import GRID, awq_scales, shared, smoothing_scales, spread
from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES
from pyc.runtime.errors import QuantizeError


def made(inputs=96, outputs=40, tokens=300, seed=0):
    random = np.random.default_rng(seed)
    x = (random.normal(size=(tokens, inputs)) * random.lognormal(sigma=1.5, size=inputs)).astype(np.float32)
    return x, [random.normal(size=(outputs, inputs)).astype(np.float32) for _ in range(2)]


def lost(x, matrices, scheme, s):
    """||(Q(W diag(s)) diag(s)^-1 - W) x||^2 in float64."""
    total = 0.0
    for rows in matrices:
        scaled = dequantize_rows(quantize_rows((rows * s).astype(np.float32), scheme), scheme).astype(np.float64) / s
        total += np.square(x.astype(np.float64) @ (scaled - rows).T).sum()
    return total


@pytest.mark.parametrize("name", ["int4-g32", "int8", "lut3-g32"])
def test_awq_takes_the_exponent_that_loses_least(name):
    scheme = SCHEMES[name]
    x, matrices = made()
    magnitude = np.abs(x).mean(0)
    found = awq_scales(magnitude, x.T @ x, [(rows, scheme) for rows in matrices])
    tried = []
    for index in range(GRID):
        s = magnitude.astype(np.float64) ** (index / GRID)
        tried.append((s / np.sqrt(s.max() * s.min())).astype(np.float32))
    losses = [lost(x, matrices, scheme, s) for s in tried]
    assert lost(x, matrices, scheme, found) == pytest.approx(min(losses), rel=1e-3)
    assert np.allclose(found, tried[int(np.argmin(losses))], rtol=1e-5)
    assert min(losses) < 0.8 * losses[0], "channels differ, so that scaling pays"


def test_heads_of_values_share_factors():
    """Two heads of values, each read by three of queries, of 16 channels."""
    x, matrices = made()
    scheme = SCHEMES["int4-g32"]
    found = awq_scales(np.abs(x).mean(0), x.T @ x, [(rows, scheme) for rows in matrices], (2, 3))
    by_head = found.reshape(2, 3, 16)
    assert np.array_equal(by_head, np.repeat(by_head[:, :1], 3, axis=1))
    assert np.allclose(spread(shared(found, 2, 3), 2, 3), found)
    assert lost(x, matrices, scheme, found) <= lost(x, matrices, scheme, np.ones(96, np.float32))


@pytest.mark.parametrize("strength", [0.0, 0.5, 0.8])
def test_smoothing_is_the_formula(strength):
    x, matrices = made()
    largest = np.abs(x).max(0)
    found = smoothing_scales(largest, matrices, strength)
    weights = np.abs(np.concatenate(matrices)).max(0).astype(np.float64)
    assert np.allclose(found, largest.astype(np.float64) ** strength / weights ** (1 - strength), rtol=1e-5)


def test_smoothing_keeps_products_of_int8_by_int8_nearer():
    """Activations rounded with one scale a token, as in the paper; some channels are 50 times as large as others."""
    random = np.random.default_rng(1)
    x = random.normal(size=(200, 64)) * np.where(np.arange(64) % 16 == 0, 50, 1)
    rows = random.normal(size=(32, 64)).astype(np.float32)
    scheme = SCHEMES["int8"]

    def error(s):
        scaled = x / s
        step = np.abs(scaled).max(1, keepdims=True) / 127
        weights = dequantize_rows(quantize_rows((rows * s).astype(np.float32), scheme), scheme).astype(np.float64)
        return np.square(np.rint(scaled / step) * step @ weights.T - x @ rows.T).sum()

    s = smoothing_scales(np.abs(x).max(0).astype(np.float32), [rows], 0.5)
    assert error(s) < 0.2 * error(np.ones(64, np.float32))


def test_channels_that_are_always_zero_keep_theirs():
    x, matrices = made()
    x[:, ::4] = 0
    scheme = SCHEMES["int4-g32"]
    for found in (
        awq_scales(np.abs(x).mean(0), x.T @ x, [(rows, scheme) for rows in matrices]),
        smoothing_scales(np.abs(x).max(0), matrices, 0.5),
    ):
        assert np.isfinite(found).all()
        assert (found > 0).all()
        assert (found[::4] == 1).all()
    nothing = np.zeros(96, np.float32)
    assert (awq_scales(nothing, np.diag(nothing), [(matrices[0], scheme)]) == 1).all()


def test_activations_that_are_not_finite():
    x, matrices = made()
    x[0, 0] = np.inf
    with pytest.raises(QuantizeError, match="contain NaN or infinity"):
        smoothing_scales(np.abs(x).max(0), matrices, 0.5)
    with pytest.raises(QuantizeError, match="contain NaN or infinity"):
        awq_scales(np.abs(x).mean(0), np.eye(96, dtype=np.float32), [(matrices[0], SCHEMES["int8"])])
