"""Rounding to nearest: codes against a scalar reference, error bounds, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from pyc.compiler import quantization
from pyc.compiler.codebooks import CODEBOOKS, Codebook
from pyc.compiler.quantization import (
    QuantizedRows,
    cast_rows,
    dequantize_rows,
    quantize_rows,
    store_rows,
)
from pyc.compiler.scales import byte_scales, scale_bytes
from pyc.compiler.schemes import SCHEMES, Dense, Int4Group, Int8Channel, Int8Group, LookupGroup, Quantized
from pyc.runtime.errors import QuantizeError

Floats = NDArray[np.float32]

QUANTIZED = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense)]
OWN_SCALES = ("mxfp4", "nvfp4", "ternary")
"""Tested in test_fp4 and test_ternary: their scales have other rules."""

weights = hnp.arrays(
    np.float32,
    (3, 128),
    elements=st.floats(-60000, 60000, width=32)
    | st.sampled_from([0.0, 1.0, -1.0, 7.0, -8.0, 2.0**-20, 1e-30]),
)


def scheme_of(name: str) -> Quantized:
    scheme = SCHEMES[name]
    assert not isinstance(scheme, Dense)
    return scheme


def short_scale(w: Floats) -> float:
    """The best of extreme / -8, toward zero to four significant bits, and its neighbours; one value at a time."""
    high, low = max(w), min(w)
    fraction, exponent = math.frexp(float(np.float32(high if high >= -low else low) / np.float32(-8)))
    steps = math.trunc(abs(fraction) * 16)
    if math.ldexp(steps, exponent - 4) < 2.0**-24:
        return math.ldexp(math.copysign(steps, fraction), exponent - 4)
    below = (steps - 1, exponent - 4) if steps > 8 else (15, exponent - 5)
    scales = [math.ldexp(*pair) for pair in ((steps + 1, exponent - 4), (steps, exponent - 4), below)]

    def cost(scale: float) -> np.float32:
        d = np.float32(math.copysign(scale, fraction))
        scaled = [value / d for value in w]
        errors = [int(np.rint((x - np.clip(np.rint(x), -8, 7)) * np.float32(64))) for x in scaled]
        return np.float32(sum(error**2 for error in errors)) * (d * d)

    return math.copysign(min(scales, key=cost), fraction)


def reference_group(w: Floats, symmetric: bool, least: float = 0) -> tuple[list[int], float, int]:
    """Codes, scale and zero point of one int4 group, one value at a time; symmetric scales are `least` at least."""
    if symmetric:
        scale = short_scale(w)
        if abs(scale) < least:
            scale = least
        zero = 8
    else:
        high, low = max(0, max(w)), min(0, min(w))
        scale = np.float16(np.float32(high / np.float32(15)) - np.float32(low / np.float32(15)))
        zero = 0
    d = np.float32(scale) if scale else np.float32(1)
    if not symmetric:
        zero = int(min(15, np.rint(np.float32(-low) / d)))
    codes = [int(np.clip(np.rint(value / d) + zero, 0, 15)) for value in w]
    return codes, float(scale), zero


@pytest.mark.slow
@given(weights, st.sampled_from([name for name in QUANTIZED if name.startswith("int4")]))
def test_int4_codes_are_those_of_a_scalar_reference(w: Floats, name: str) -> None:
    scheme = scheme_of(name)
    assert isinstance(scheme, Int4Group)
    stored = quantize_rows(w, scheme)
    for row in range(len(w)):
        groups = w[row].reshape(-1, scheme.group_size)
        largest = max(abs(short_scale(group)) for group in groups)
        least = max(2.0**-24, math.ldexp(1, math.frexp(largest)[1] - 16) if largest else 0)
        for g in range(128 // scheme.group_size):
            part = slice(g * scheme.group_size, (g + 1) * scheme.group_size)
            codes, scale, zero = reference_group(w[row, part], scheme.symmetric, least)
            assert stored.codes[row, part].tolist() == codes
            assert float(stored.scale[row, g]) == scale
            if stored.zero is not None:
                assert int(stored.zero[row, g]) == zero


def lookup_group(w: Floats, codebook: Codebook, least: float) -> tuple[list[int], float, float]:
    """Codes and scale of one group, and the scale before it was raised to `least`; one value at a time."""
    extreme = np.float32(max(w) if max(w) >= -min(w) else min(w))
    found: list[tuple[np.float32, float, int]] = []
    for choice, table in enumerate(codebook.tables):
        for end in (table[0], table[-1]):
            fraction, exponent = math.frexp(float(extreme / np.float32(end)))
            eighths = math.trunc(abs(fraction) * 16) + 8 * exponent
            for step in codebook.steps:
                at = eighths + (step if math.ldexp(abs(fraction), exponent) >= 2.0**-24 else 0)
                size = math.ldexp(8 + (at - 8) % 8, (at - 8) // 8 - 4) if fraction else 0.0
                d = np.float32(math.copysign(size, fraction))
                scaled = [value / (d or np.float32(1)) for value in w]
                errors = [int(np.rint((x - table[nearest_entry(x, table)]) * np.float32(4))) for x in scaled]
                found.append((np.float32(sum(error**2 for error in errors)) * (d * d), float(d), choice))
    _, scale, choice = min(found, key=lambda candidate: candidate[0])
    d = np.float32(scale if abs(scale) >= least else least)
    table = codebook.tables[choice]
    codes = [nearest_entry(value / (d or np.float32(1)), table) + (choice << codebook.bits) for value in w]
    return codes, float(d), scale


def nearest_entry(x: np.float32, table: tuple[int, ...]) -> int:
    """The entry nearest to x; of two, the larger."""
    return max(range(len(table)), key=lambda i: (-abs(float(x) - table[i]), i))


@pytest.mark.slow
@settings(max_examples=50)
@given(weights, st.sampled_from(["lut5-g32", "lut4-g32", "lut3-g32", "lut2-g32", "lut2-g128", "int3-g32", "int2-g32"]))
def test_lookup_codes_are_those_of_a_scalar_reference(w: Floats, name: str) -> None:
    scheme = scheme_of(name)
    assert isinstance(scheme, LookupGroup)
    codebook = CODEBOOKS[scheme.codebook]
    stored = quantize_rows(w, scheme)
    for row in range(len(w)):
        groups = w[row].reshape(-1, scheme.group_size)
        largest = max(abs(lookup_group(group, codebook, 0)[2]) for group in groups)
        least = max(2.0**-24, math.ldexp(1, math.frexp(largest)[1] - 8) if largest else 0)
        for g, group in enumerate(groups):
            codes, scale, _ = lookup_group(group, codebook, least)
            assert stored.codes[row, g * scheme.group_size : (g + 1) * scheme.group_size].tolist() == codes
            assert float(stored.scale[row, g]) == scale


@pytest.mark.slow
@given(weights, st.sampled_from([32, 64, 128]), st.integers(1, 4), st.integers(0, 31))
def test_int8_group_codes_are_those_of_a_scalar_reference(w: Floats, group: int, groups: int, short: int) -> None:
    groups = min(groups, 128 // group)
    w = w[:, : groups * group - short]
    stored = quantize_rows(w, Int8Group(group))
    assert stored.scale.shape == (3, groups)
    for row in range(3):
        for g in range(groups):
            part = w[row, g * group : (g + 1) * group]
            scale = np.float16(np.abs(part).max() / np.float32(127))
            d = np.float32(scale) if scale else np.float32(1)
            codes = [int(np.clip(np.rint(value / d), -127, 127)) + 128 for value in part]
            assert stored.codes[row, g * group : (g + 1) * group].tolist() == codes
            assert stored.scale[row, g] == scale


@given(weights, st.sampled_from([name for name in QUANTIZED if not name.startswith("fp8") and name not in OWN_SCALES]))
def test_error_bound(w: Floats, name: str) -> None:
    scheme = scheme_of(name)
    stored = quantize_rows(w, scheme)
    step = np.abs(np.repeat(stored.scale.astype(np.float64), 128 // stored.scale.shape[1], axis=1))
    if isinstance(scheme, LookupGroup):
        # The extreme may lie beyond the end of its table by as many eighths of a binade as are tried, and one more.
        tables, steps = CODEBOOKS[scheme.codebook].tables, CODEBOOKS[scheme.codebook].steps
        gap = max(max(np.diff(table).max() / 2, 255 * (2 ** ((1 - min(steps)) / 8) - 1)) for table in tables)
        bound = max(gap, 255 - min(abs(table[-1]) for table in tables)) * step + 2.0**-15
    elif isinstance(scheme, Int4Group) and scheme.symmetric:
        bound = 3 * step
    else:
        # 2^-11: a scale rounded to f16 moves the ends of the range; the term added: subnormal scales; see the module.
        coarse = {Int4Group: 16 * 2.0**-25, Int8Group: 127 * 2.0**-25, Int8Channel: 127 * 2.0**-149}
        bound = (step if isinstance(scheme, Int4Group) else step / 2) * (1 + 2.0**-11) + coarse[type(scheme)]
    slack = 4 * 2.0**-24 * np.abs(w).astype(np.float64)  # the f32 division and the value itself
    assert (np.abs(dequantize_rows(stored, scheme) - w.astype(np.float64)) <= bound + slack).all()


def test_the_extreme_lies_on_minus_8() -> None:
    w = np.zeros((3, 32), np.float32)
    w[0, 5], w[1, 7] = 4.0, -4.0
    w[2, 5], w[2, 6] = -4.0, 4.0
    stored = quantize_rows(w, Int4Group(32))
    assert stored.codes[0, 5] == stored.codes[1, 7] == 0
    assert stored.scale.ravel().tolist() == [-0.5, 0.5, -0.5625]  # on a tie the positive one counts
    assert dequantize_rows(stored, Int4Group(32))[0, 5] == 4.0


def test_the_scale_with_the_least_error_is_taken() -> None:
    w = np.zeros((3, 32), np.float32)
    w[0, :2] = [-8.9, 8.9]  # one step more, lest both are clipped
    w[1] = np.arange(32) % 15 - 7.0
    w[1, 0] = -8.9  # clipped, so that the others are exact
    w[2, :17] = [-8.0, *np.linspace(-7, 7, 16, dtype=np.float32) * np.float32(0.875)]  # one step less
    stored = quantize_rows(w, Int4Group(32))
    assert stored.scale.tolist() == [[-1.125], [1.0], [1.0]]
    assert stored.codes[1, :4].tolist() == [0, 2, 3, 4]


def test_scales_of_a_row_lie_within_16_powers_of_two() -> None:
    w = np.repeat(np.array([[-8.0, -(2.0**-12), 2.0**-30, 0]], np.float32), 32, axis=1)
    scale = quantize_rows(w, Int4Group(32)).scale
    assert scale.tolist() == [[1.0, 2.0**-15, 2.0**-15, 2.0**-15]]
    short, base = scale_bytes(scale)
    assert short.tolist() == [[15 << 3, 0, 0, 0]]
    assert base.tolist() == [2.0**-15]


@given(hnp.arrays(np.uint8, (2, 5)), st.integers(-24, 0))
def test_bytes_of_scales_are_read_as_they_were_written(short: NDArray[np.uint8], base: int) -> None:
    short[:, 0] |= 0x78  # the largest exponent, which the base follows from
    scale = byte_scales(short, np.full(2, 2.0**base, np.float32))
    sign = np.where(short & 0x80, -1.0, 1.0)
    np.testing.assert_array_equal(scale, sign * (1 + (short & 7) / 8) * 2.0 ** ((short >> 3 & 15) + float(base)))
    again, bases = scale_bytes(scale)
    np.testing.assert_array_equal(again, short)
    assert bases.tolist() == [2.0**base] * 2


def test_ties_go_to_even() -> None:
    w = np.zeros((1, 32), np.float32)
    w[0] = np.arange(32) % 8  # exact by the scale 1, so that it is taken
    w[0, :5] = [-8.0, 0.5, 1.5, 2.5, -0.5]
    assert quantize_rows(w, Int4Group(32)).codes[0, :5].tolist() == [0, 8, 10, 10, 8]


@pytest.mark.parametrize("name", QUANTIZED)
def test_zeros_stay_zeros(name: str) -> None:
    stored = quantize_rows(np.zeros((2, 128), np.float32), scheme_of(name))
    scheme = scheme_of(name)
    if name in OWN_SCALES:
        assert not dequantize_rows(stored, scheme).any()
        return
    short = isinstance(scheme, LookupGroup) or (isinstance(scheme, Int4Group) and scheme.symmetric)
    least = 2.0**-24 if short else 0
    assert (stored.scale == least).all()
    nearest = 0.0
    if isinstance(scheme, LookupGroup):
        nearest = min(abs(entry) for entry in CODEBOOKS[scheme.codebook].entries) * least
    assert (np.abs(dequantize_rows(stored, scheme)) == nearest).all()


@pytest.mark.parametrize("name", [name for name in QUANTIZED if not name.startswith("lut")])
def test_zero_is_exact_in_every_group(name: str) -> None:
    w = np.random.default_rng(0).standard_normal((4, 128)).astype(np.float32) + np.float32(3)
    w[:, ::9] = 0
    assert not dequantize_rows(quantize_rows(w, scheme_of(name)), scheme_of(name))[:, ::9].any()


@pytest.mark.parametrize("name", QUANTIZED)
def test_tiles_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.random.default_rng(1).standard_normal((50, 256)).astype(np.float32)
    whole = quantize_rows(w, scheme_of(name))
    monkeypatch.setattr(quantization, "TILE_ELEMENTS", 256 * 7)
    small = quantize_rows(w, scheme_of(name))
    np.testing.assert_array_equal(small.codes, whole.codes)
    np.testing.assert_array_equal(small.scale, whole.scale)


@pytest.mark.parametrize("name", [*QUANTIZED, "f32", "f16", "bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    w = np.ones((4, 128), np.float32)
    w[2, 77] = bad
    with pytest.raises(QuantizeError, match="NaN" if np.isnan(bad) else "infinity"):
        store_rows(w, SCHEMES[name])


@pytest.mark.parametrize(
    "name", [name for name in QUANTIZED if name != "int8" and not name.startswith("fp8") and name not in OWN_SCALES]
)
def test_a_scale_beyond_f16_is_refused(name: str) -> None:
    w = np.zeros((1, 128), np.float32)
    w[0, 3] = 3e38
    with pytest.raises(QuantizeError, match="beyond f16"):
        quantize_rows(w, scheme_of(name))
    w[0, 3] = 3e38 if name.endswith("asym") else 1
    w[0, 4] = -3e38  # high - low overflows f32
    with pytest.raises(QuantizeError, match="beyond f16"):
        quantize_rows(w, scheme_of(name))


def test_int8_takes_any_finite_value() -> None:
    w = np.array([[3.4e38, -3.4e38, 0.0, 1e-40]], np.float32)
    stored = quantize_rows(w, Int8Channel())
    assert stored.codes.tolist() == [[255, 1, 128, 128]]


def test_int8_keeps_to_127_where_the_scale_is_coarse() -> None:
    """-190 steps of the smallest f32, and 190 of the smallest f16: the scale is one step, the code would be -190."""
    assert quantize_rows(np.array([[-190 * 2.0**-149]], np.float32), Int8Channel()).codes.tolist() == [[1]]
    stored = quantize_rows(np.array([[-190 * 2.0**-24, 190 * 2.0**-24]], np.float32), Int8Group())
    assert stored.scale.tolist() == [[2.0**-24]]
    assert stored.codes.tolist() == [[1, 255]]


@pytest.mark.parametrize(
    ("inputs", "group_size", "message"),
    [
        (100, 32, "in_features=100 is not divisible by group_size=32; choose int8 for this tensor"),
        (96, 64, "in_features=96 is not divisible by group_size=64; choose 32"),
        (192, 128, "in_features=192 is not divisible by group_size=128; choose 32 or 64"),
        (64, 16, "group_size=16 is not supported; choose 32, 64 or 128"),
    ],
)
def test_groups_must_divide(inputs: int, group_size: int, message: str) -> None:
    with pytest.raises(QuantizeError) as caught:
        quantize_rows(np.zeros((1, inputs), np.float32), Int4Group(group_size))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("inputs", "group_size", "message"),
    [
        (1, 64, "in_features=1 is not divisible by group_size=64; choose 32"),
        (161, 128, "in_features=161 is not divisible by group_size=128; choose 32 or 64"),
        (64, 48, "group_size=48 is not supported; choose 32, 64 or 128"),
    ],
)
def test_groups_of_int8_must_divide_whole_blocks(inputs: int, group_size: int, message: str) -> None:
    with pytest.raises(QuantizeError) as caught:
        quantize_rows(np.zeros((1, inputs), np.float32), Int8Group(group_size))
    assert str(caught.value) == message


@given(hnp.arrays(np.float32, (2, 16), elements=st.floats(-65000, 65000, width=32)))
def test_bf16_rounds_to_nearest_even(w: Floats) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    np.testing.assert_array_equal(cast_rows(w, "bf16"), w.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_casts_refuse_overflow() -> None:
    assert np.isfinite(np.asarray(cast_rows(np.array([[65519.0]], np.float32), "f16"), np.float32)).all()
    with pytest.raises(QuantizeError, match="65520 does not fit f16; use bf16 or f32"):
        cast_rows(np.array([[65520.0]], np.float32), "f16")
    assert int(cast_rows(np.array([[3.3895e38]], np.float32), "bf16")[0, 0]) == 0x7F7F
    with pytest.raises(QuantizeError, match="does not fit bf16; use f32"):
        cast_rows(np.array([[-3.4e38]], np.float32), "bf16")


def test_an_empty_range_of_rows_is_empty() -> None:
    stored = store_rows(np.empty((0, 64), np.float32), SCHEMES["int4-g32"])
    assert isinstance(stored, QuantizedRows)
    assert stored.codes.shape == (0, 64)
