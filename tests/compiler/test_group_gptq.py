"""compiler/group_gptq.py and compiler/coordinate_descent.py against their formulas in float64, one row at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.compiler import group_gptq
from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.coordinate_descent import descend
from pyc.compiler.gptq import DAMPING, group_of_columns, prepare, round_rows
from pyc.compiler.group_gptq import is_grouped, round_groups
from pyc.compiler.quantization import QuantizedRows, dequantize_rows, quantize_rows
from pyc.compiler.scale_search import tried_scales
from pyc.compiler.scales import INT4_BINADES, LOOKUP_BINADES, byte_scales, scale_bytes
from pyc.compiler.schemes import SCHEMES, Dense, LookupGroup
from tests.compiler.test_gptq import made

GROUPED = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense) and is_grouped(scheme)]
FORMULA = ["int4-g32", "int4-g32-asym", "lut5-g32", "lut4-g32", "lut3-g32", "lut2-g32"]


def values_of(scheme, scale, zero):
    """All that a code of a group may stand for, f64."""
    if isinstance(scheme, LookupGroup):
        return float(scale) * np.array(CODEBOOKS[scheme.codebook].tables[int(zero)], np.float64)
    return float(scale) * (np.arange(16) - float(zero))


def rounded_row(w, h, scheme):
    """One row, each group by every scale that is tried; what follows moves by the inverse Hessian, which loses a column
    by elimination (optimal brain quantization)."""
    size = scheme.group_size
    groups = np.arange(len(w)).reshape(-1, size)
    groups = sorted(groups, key=lambda columns: -np.diag(h)[columns].sum())
    left, found = w.astype(np.float64).copy(), np.zeros(len(w))
    inverse = np.linalg.inv(h + DAMPING * np.diag(h).mean() * np.eye(len(w)))
    for columns in groups:
        order = columns[np.argsort(-np.diag(h)[columns], kind="stable")]
        best = None
        for scale, zero in tried_scales(left[columns].astype(np.float32)[None, None], scheme):
            moved, own, lost = left.copy(), inverse.copy(), 0.0
            for column in order:
                allowed = values_of(scheme, scale[0, 0], zero[0, 0])
                value = allowed[np.abs(moved[column] - allowed).argmin()]
                error = (moved[column] - value) / own[column, column]
                lost += error**2 * own[column, column]
                moved -= error * own[:, column]
                moved[column] = value
                own = own - np.outer(own[:, column], own[column]) / own[column, column]
                own[column, column] = 1
            if best is None or lost < best[0]:
                best = lost, moved, own
        _, left, inverse = best
        found[columns] = left[columns]
    return found


@pytest.mark.parametrize("name", FORMULA)
def test_every_group_takes_the_scale_that_loses_least(name, monkeypatch):
    """All scales are finalists. f32 may decide otherwise between two that are as good; what follows then differs."""
    monkeypatch.setattr(group_gptq, "FINALISTS", 64)
    scheme = SCHEMES[name]
    x, rows = made(96, 10, 512)
    h = x.T.astype(np.float64) @ x
    wanted = np.stack([rounded_row(row, h, scheme) for row in rows])
    got = dequantize_rows(round_groups(rows, scheme, prepare(x.T @ x, group=scheme.group_size)), scheme)
    same = np.abs(got - wanted).max(axis=1) < 1e-4 * np.abs(wanted).max(axis=1)
    assert same.mean() >= 0.7
    lost = [np.einsum("nk,kj,nj->n", rows - q, h, rows - q) for q in (got, wanted)]
    assert abs(lost[0].sum() / lost[1].sum() - 1) < 0.02


@pytest.mark.parametrize("name", GROUPED)
def test_products_lose_less_than_with_scales_of_nearest_rounding(name):
    scheme = SCHEMES[name]
    x, rows = made(256, 32, 2048)
    h = x.T.astype(np.float64) @ x

    def lost(stored):
        errors = rows - dequantize_rows(stored, scheme)
        return float(np.einsum("nk,kj,nj->", errors, h, errors))

    grouped = prepare(x.T @ x, group=scheme.group_size)
    found = round_groups(rows, scheme, grouped)
    plain = lost(round_rows(rows, scheme, prepare(x.T @ x)))
    assert lost(found) < 0.99 * plain
    assert lost(descend(rows, found, scheme, grouped)) < 0.96 * plain


@given(st.sampled_from([name for name in GROUPED if "asym" not in name]), st.integers(0, 60), st.floats(-12, 12))
def test_scales_fit_their_bytes(name, seed, spread):
    """Groups of a row that differ by 2^-12 to 2^12: what is stored is what was chosen."""
    scheme = SCHEMES[name]
    x, rows = made(2 * scheme.group_size, 3, 80, seed)
    rows[:, : scheme.group_size] *= np.float32(2.0**spread)
    found = round_groups(rows, scheme, prepare(x.T @ x, group=scheme.group_size))
    binades = LOOKUP_BINADES if isinstance(scheme, LookupGroup) else INT4_BINADES
    assert np.array_equal(byte_scales(*scale_bytes(found.scale, binades), binades), found.scale)


def test_a_group_of_zeros_and_rows_of_zeros():
    scheme = SCHEMES["int4-g32"]
    x, rows = made(64, 4, 200)
    rows[0, :32] = 0
    rows[1] = 0
    found = descend(rows, round_groups(rows, scheme, prepare(x.T @ x, group=32)), scheme, prepare(x.T @ x))
    assert np.isfinite(dequantize_rows(found, scheme)).all()
    assert not dequantize_rows(found, scheme)[1].any()


def descended_row(w, q, h, allowed, sweeps):
    """Cyclic coordinate descent of one row, its loss computed anew for every code of a column."""
    q = q.astype(np.float64).copy()
    order = np.argsort(-np.diag(h), kind="stable")
    for _ in range(sweeps):
        for column in order:
            costs = []
            for value in allowed[column]:
                tried = q.copy()
                tried[column] = value
                costs.append((w - tried) @ h @ (w - tried))
            q[column] = allowed[column][int(np.argmin(costs))]
    return q


def allowed_values(stored: QuantizedRows, scheme, row):
    """What the codes of each column of a row may stand for, f64."""
    found, inputs = [], stored.codes.shape[1]
    for column in range(inputs):
        group = column // group_of_columns(scheme, inputs)
        zero = 8 if stored.zero is None else stored.zero[row, group]
        if isinstance(scheme, LookupGroup):
            zero = stored.codes[row, column] >> CODEBOOKS[scheme.codebook].bits
        found.append(values_of(scheme, stored.group_scales[row, group], zero))
    return found


@pytest.mark.parametrize("name", FORMULA)
def test_coordinate_descent_is_that_of_the_formula(name):
    scheme = SCHEMES[name]
    x, rows = made(96, 6, 512)
    hessian = prepare(x.T @ x)
    stored = quantize_rows(rows, scheme)
    h = hessian.damped.astype(np.float64)
    exact = rows.astype(np.float64)
    start = dequantize_rows(stored, scheme)
    wanted = np.stack(
        [descended_row(exact[row], start[row], h, allowed_values(stored, scheme, row), 2) for row in range(len(rows))]
    )
    got = dequantize_rows(descend(rows, stored, scheme, hessian), scheme)
    assert (np.abs(got - wanted) < 1e-4 * np.abs(wanted).max()).mean() > 0.99
    lost = [np.einsum("nk,kj,nj->", exact - q, h, exact - q) for q in (start, got, wanted)]
    assert lost[1] < 0.9 * lost[0]
    assert abs(lost[1] / lost[2] - 1) < 0.01


@pytest.mark.parametrize("name", ["int4-g32", "int4-g32-asym", "int8", "int8-g32", "fp8", "mxfp4", "nvfp4", "ternary"])
def test_coordinate_descent_never_loses_more(name):
    scheme = SCHEMES[name]
    x, rows = made(256, 16, 1024)
    hessian = prepare(x.T @ x, x.T @ x)
    stored = round_rows(rows, scheme, hessian)
    h = hessian.damped.astype(np.float64)
    found = descend(rows, stored, scheme, hessian)
    lost = [
        np.einsum("nk,kj,nj->n", errors, h, errors)
        for errors in (rows - dequantize_rows(each, scheme).astype(np.float64) for each in (stored, found))
    ]
    assert (lost[1] <= lost[0] * (1 + 1e-4)).all()
    assert lost[1].sum() < 0.995 * lost[0].sum()
    assert np.array_equal(found.scale, stored.scale)
