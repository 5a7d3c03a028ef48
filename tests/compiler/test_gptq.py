"""compiler/gptq.py against the method's own formula in float64, without blocks, factors or shortcuts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.fp8 import TYPES
from pyc.compiler.gptq import BLOCK, DAMPING, prepare, round_rows
from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES, Dense, Float8, Int4Group, Int8Channel, LookupGroup
from pyc.runtime.errors import QuantizeError

QUANTIZED = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense)]


def made(inputs, outputs, tokens, seed=0):
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(inputs, inputs)) / np.sqrt(inputs)
    x = (random.normal(size=(tokens, inputs)) @ mixing * random.lognormal(size=inputs)).astype(np.float32)
    return x, random.normal(size=(outputs, inputs)).astype(np.float32)


def obq(w, h, scheme):
    """Optimal brain quantization of one row in a fixed order (arXiv:2210.17323, equations 2 and 3): after each column
    the inverse Hessian loses that column by elimination, and the columns that are left move along its row."""
    stored = quantize_rows(w[None].astype(np.float32), scheme)
    if isinstance(scheme, Float8):
        group = len(w)
    else:
        group = len(w) if isinstance(scheme, Int8Channel) else scheme.group_size
    low, high, middle = (0, 15, 8) if isinstance(scheme, Int4Group) else (1, 255, 128)
    left, codes = w.astype(np.float64).copy(), np.zeros(len(w), np.int64)
    order = np.argsort(-np.diag(h), kind="stable")
    inverse = np.linalg.inv(h + DAMPING * np.diag(h).mean() * np.eye(len(w)))
    for column in order:
        scale = float(stored.group_scales[0, column // group])
        if isinstance(scheme, LookupGroup):
            book = CODEBOOKS[scheme.codebook]
            table = int(stored.codes[0, column // group * group]) >> book.bits
            codes[column] = np.abs(left[column] / scale - book.tables[table]).argmin() + (table << book.bits)
            value = float(book.values[codes[column]])
        elif isinstance(scheme, Float8):
            codes[column] = TYPES[scheme.format].rounded(np.float32([left[column] / (scale or 1)]))[0]
            value = float(TYPES[scheme.format].values[codes[column]])
        else:
            zero = middle if stored.zero is None else int(stored.zero[0, column // group])
            codes[column] = np.clip(np.rint(left[column] / (scale or 1)) + zero, low, high)
            value = codes[column] - zero
        error = (left[column] - scale * value) / inverse[column, column]
        left -= error * inverse[:, column]
        inverse = inverse - np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse[column, column] = 1  # it is done
    return codes


FORMULA = [
    *("int4-g32", "int4-g32-asym", "int8", "int8-g32"),
    *("lut5-g32", "lut4-g32", "lut3-g32", "lut2-g32", "fp8", "fp8-e5m2"),
]
FORMULA += ["mxfp4"]


@pytest.mark.parametrize("name", FORMULA)
def test_codes_are_those_of_the_formula(name):
    """Some codes lie so near the middle that rounding decides; three in a thousand may differ by one."""
    scheme = SCHEMES[name]
    x, rows = made(96, 12, 512)
    h = x.T.astype(np.float64) @ x
    wanted = np.stack([obq(row, h, scheme) for row in rows])
    got = round_rows(rows, scheme, prepare(x.T @ x)).codes
    different = np.abs(wanted - got)
    assert different.max() <= 1
    assert (different > 0).mean() <= 3e-3


def loss(x, rows, stored, scheme):
    return float(np.square(x.astype(np.float64) @ (dequantize_rows(stored, scheme) - rows).T).sum())


@pytest.mark.parametrize("name", QUANTIZED)
def test_products_lose_less_than_by_nearest_rounding(name):
    scheme = SCHEMES[name]
    x, rows = made(256, 32, 2048)
    found = loss(x, rows, round_rows(rows, scheme, prepare(x.T @ x)), scheme)
    assert found < 0.75 * loss(x, rows, quantize_rows(rows, scheme), scheme)


def test_inputs_that_rounding_has_changed_are_made_up_for():
    """The products with changed inputs come nearer to those with exact ones."""
    scheme = SCHEMES["int4-g32"]
    exact, rows = made(128, 24, 4096)
    mixing = np.eye(128) + 0.02 * np.random.default_rng(1).normal(size=(128, 128))
    changed = (exact @ mixing).astype(np.float32)
    wanted = exact.astype(np.float64) @ rows.T

    def missed(hessian):
        values = dequantize_rows(round_rows(rows, scheme, hessian), scheme)
        return float(np.square(changed.astype(np.float64) @ values.T - wanted).sum())

    gram = changed.T @ changed
    assert missed(prepare(gram, exact.T @ changed)) < 0.5 * missed(prepare(gram))


def test_the_same_inputs_change_nothing():
    scheme = SCHEMES["int8"]
    x, rows = made(64, 8, 256)
    gram = x.T @ x
    assert np.array_equal(
        round_rows(rows, scheme, prepare(gram, gram)).codes, round_rows(rows, scheme, prepare(gram)).codes
    )


EVERY = ["int4-g32", "int4-g32-asym", "int8", "int8-g32", "fp8", "fp8-b128"]


@given(st.sampled_from(EVERY), st.integers(1, 5), st.integers(0, 50))
def test_scales_are_those_of_the_scheme_and_codes_in_its_range(name, groups, seed):
    scheme = SCHEMES[name]
    x, rows = made(32 * groups, 3, 40, seed)
    found, nearest = round_rows(rows, scheme, prepare(x.T @ x)), quantize_rows(rows, scheme)
    assert np.array_equal(found.scale, nearest.scale)
    assert found.zero is None or np.array_equal(found.zero, nearest.zero)
    if isinstance(scheme, Float8):
        assert np.isfinite(TYPES[scheme.format].values[found.codes]).all()
        return
    low, high = (0, 15) if isinstance(scheme, Int4Group) else (1, 255)
    assert low <= found.codes.min() <= found.codes.max() <= high


def test_blocks_of_columns_change_nothing(monkeypatch):
    scheme = SCHEMES["int4-g32"]
    x, rows = made(3 * BLOCK // 2, 8, 600)
    hessian = prepare(x.T @ x)
    whole = round_rows(rows, scheme, hessian)
    monkeypatch.setattr("pyc.compiler.gptq.BLOCK", 1 << 20)
    assert (round_rows(rows, scheme, hessian).codes == whole.codes).mean() > 0.999


def test_inputs_that_are_always_zero_have_no_say():
    scheme = SCHEMES["int4-g32"]
    x, rows = made(64, 4, 256)
    x[:, ::3] = 0
    found = round_rows(rows, scheme, prepare(x.T @ x))
    assert np.isfinite(dequantize_rows(found, scheme)).all()
    nothing = round_rows(rows, scheme, prepare(np.zeros((64, 64), np.float32)))
    assert np.array_equal(nothing.codes, quantize_rows(rows, scheme).codes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_activations_that_are_not_finite(value):
    gram = np.eye(4, dtype=np.float32)
    gram[1, 2] = value
    with pytest.raises(QuantizeError, match="activations of the calibration text contain NaN or infinity"):
        prepare(gram)


@pytest.mark.parametrize("name", ["fp8-tensor", "nvfp4"])
def test_scales_that_are_given_are_kept(name):
    """Those of 8-bit floating point that more rows share than are rounded at a time, and nvfp4's factor of a matrix."""
    scheme = SCHEMES[name]
    x, rows = made(64, 6, 256)
    stored = quantize_rows(rows, scheme)
    given = stored.scale.astype(np.float32) if stored.outer is None else stored.outer
    hessian = prepare(x.T @ x)
    parts = [round_rows(rows[part], scheme, hessian, given[part]) for part in (slice(0, 2), slice(2, 6))]
    whole = round_rows(rows, scheme, hessian, given)
    assert np.array_equal(whole.group_scales, stored.group_scales)
    assert np.array_equal(np.concatenate([part.codes for part in parts]), whole.codes)
