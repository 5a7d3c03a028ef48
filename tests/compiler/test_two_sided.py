"""compiler/two_sided.py against the paper's formula in float64, one entry after another."""

import numpy as np
import pytest

from pyc.compiler import gptq, two_sided
from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES, Dense
from pyc.compiler.two_sided import factor, round_two_sided
from pyc.runtime.errors import QuantizeError

QUANTIZED = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense)]
DAMPING = 0.05


def made(outputs=24, inputs=64, seed=0):
    """Weights, and Hessians of outputs and inputs, each with a spectrum that falls."""
    random = np.random.default_rng(seed)

    def hessian(size):
        basis = np.linalg.qr(random.normal(size=(size, size)))[0]
        return (basis * np.geomspace(1, 1e-3, size)) @ basis.T * random.lognormal(size=size)[:, None]

    def symmetric(h):
        return (h @ h.T).astype(np.float32)

    weights = random.normal(size=(outputs, inputs)).astype(np.float32)
    return weights, symmetric(hessian(outputs)), symmetric(hessian(inputs))


def damped(h):
    return h.astype(np.float64) + DAMPING * np.diag(h).mean() * np.eye(len(h))


def unit_upper(h):
    """U of H = U D U', by elimination from the last column on."""
    left, upper = h.copy(), np.eye(len(h))
    for k in reversed(range(len(h))):
        upper[:k, k] = left[:k, k] / left[k, k]
        left[:k, :k] -= left[k, k] * np.outer(upper[:k, k], upper[:k, k])
    return upper


def by_the_formula(w, h_outer, h_inner, nearest):
    """Q = round(W + U_O' E U_I - E), entry by entry, rows and columns by their diagonals."""
    rows, columns = (np.argsort(-np.diag(h), kind="stable") for h in (h_outer, h_inner))
    u_outer = unit_upper(damped(h_outer)[np.ix_(rows, rows)])
    u_inner = unit_upper(damped(h_inner)[np.ix_(columns, columns)])
    exact = w.astype(np.float64)[np.ix_(rows, columns)]
    errors, found = np.zeros_like(exact), np.zeros_like(w, np.float64)
    for i in range(len(rows)):
        for j in range(len(columns)):
            moved = exact[i, j] + u_outer[: i + 1, i] @ errors[: i + 1, : j + 1] @ u_inner[: j + 1, j]
            value = nearest(moved, rows[i], columns[j])
            errors[i, j] = exact[i, j] - value
            found[rows[i], columns[j]] = value
    return found


def nearest_of(stored, scheme, group):
    """The nearest number of a group's, by the scales of rounding to nearest."""
    scales = stored.group_scales.astype(np.float64)
    zeros = np.full(scales.shape, 8.0) if stored.zero is None else stored.zero.astype(np.float64)
    return lambda value, row, column: scales[row, column // group] * (
        np.clip(np.rint(value / scales[row, column // group]) + zeros[row, column // group], 0, 15)
        - zeros[row, column // group]
    )


@pytest.mark.parametrize("name", ["int4-g32", "int4-g32-asym"])
@pytest.mark.parametrize("block", [5, 128])
def test_codes_are_those_of_the_formula(name, block, monkeypatch):
    """Once a code that lies in the middle is decided otherwise, what follows differs; so the first rows are compared
    whole, and all by their cost."""
    monkeypatch.setattr(two_sided, "BLOCK", block)
    scheme = SCHEMES[name]
    w, h_outer, h_inner = made()
    wanted = by_the_formula(w, h_outer, h_inner, nearest_of(quantize_rows(w, scheme), scheme, 32))
    found = round_two_sided(w, scheme, factor(h_outer, DAMPING), factor(h_inner, DAMPING))
    got = dequantize_rows(found, scheme)
    assert (np.abs(got - wanted) < 1e-5).mean() > 0.98


def cost(h_outer, h_inner, lost):
    return float(np.einsum("ij,ij->", h_outer.astype(np.float64) @ lost @ h_inner, lost))


@pytest.mark.parametrize("name", QUANTIZED)
def test_it_costs_less_than_rounding_by_inputs_alone(name):
    """And that less than rounding to nearest."""
    scheme = SCHEMES[name]
    w, h_outer, h_inner = made(64, 128, seed=3)
    both = round_two_sided(w, scheme, factor(h_outer, DAMPING), factor(h_inner, DAMPING))
    one = gptq.round_rows(w, scheme, gptq.prepare(h_inner, damping=DAMPING))
    costs = [
        cost(h_outer, h_inner, w - dequantize_rows(stored, scheme)) for stored in (both, one, quantize_rows(w, scheme))
    ]
    assert costs[0] < 0.8 * costs[1] < 0.8 * costs[2]


def test_without_a_say_of_outputs_it_is_gptq():
    scheme = SCHEMES["int4-g32"]
    w, _, h_inner = made(16, 96)
    found = round_two_sided(w, scheme, factor(np.eye(16, dtype=np.float32), 0.0), factor(h_inner, DAMPING))
    wanted = gptq.round_rows(w, scheme, gptq.prepare(h_inner, damping=DAMPING))
    assert (found.codes == wanted.codes).mean() > 0.99


def test_damping_of_a_row_by_itself_is_blind_to_its_scale():
    """A Hessian of rows that are a thousand times as large as others has the same factor, in another unit."""
    _, h, _ = made()
    units = np.geomspace(1, 1e3, len(h)).astype(np.float32)
    one, other = (factor(each, 0.0, own=0.5) for each in (h, h * units * units[:, None]))

    def plain(f):
        upper = np.zeros_like(f.lower)
        upper[np.ix_(f.order, f.order)] = f.lower.T
        return upper

    # U D U' of the same matrix in other units, each in its own order: the product is what agrees.
    for f, scale in ((one, np.ones_like(units)), (other, units)):
        u = plain(f).astype(np.float64)
        inverse = np.linalg.inv(u)
        target = (h + 0.5 * np.diag(np.diag(h))).astype(np.float64) * scale * scale[:, None]
        d = inverse @ target @ inverse.T
        lost = d - np.diag(np.diag(d))
        assert np.abs(lost / np.sqrt(np.outer(np.diag(d), np.diag(d)))).max() < 1e-3


def test_rows_and_columns_of_zeros_have_no_say():
    scheme = SCHEMES["int4-g32"]
    w, h_outer, h_inner = made()
    h_outer[::3] = h_outer[:, ::3] = 0
    h_inner[::5] = h_inner[:, ::5] = 0
    found = round_two_sided(w, scheme, factor(h_outer, DAMPING), factor(h_inner, DAMPING))
    assert np.isfinite(dequantize_rows(found, scheme)).all()
    nothing = [factor(np.zeros((size, size), np.float32), DAMPING) for size in w.shape]
    assert np.array_equal(round_two_sided(w, scheme, *nothing).codes, quantize_rows(w, scheme).codes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_hessians_that_are_not_finite(value):
    h = np.eye(4, dtype=np.float32)
    h[1, 2] = value
    with pytest.raises(QuantizeError, match="activations of the calibration text, or their gradients, contain NaN"):
        factor(h, DAMPING)
