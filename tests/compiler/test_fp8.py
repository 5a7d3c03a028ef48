"""compiler/fp8.py: codes against ml_dtypes and the formula, scales against whole matrices, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from weight_files import source

from pyc.compiler.codes import Float8Codes
from pyc.compiler.evaluate import evaluate_stored
from pyc.compiler.evaluate_codes import kept_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.fp8 import BLOCK_SIDE, TYPES
from pyc.compiler.quantization import QuantizedRows, dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES, Float8
from pyc.compiler.weights import Source, Stacked, Stored

__all__ = ["source"]

FORMATS = sorted(TYPES)
NAMES = [name for name, scheme in SCHEMES.items() if isinstance(scheme, Float8)]
F32_MAX = float(np.finfo(np.float32).max)


def numbers_of(name):
    """All numbers of a format in float64, by the formula, beside their codes: what is no number is left out."""
    bias, fraction_bits, last = {"e4m3": (7, 3, 0x7E), "e5m2": (15, 2, 0x7B)}[name]
    found = {}
    for code in range(last + 1):
        exponent, fraction = code >> fraction_bits, code & (1 << fraction_bits) - 1
        whole = fraction / 2**fraction_bits + (exponent > 0)
        found[code] = whole * 2.0 ** (max(exponent, 1) - bias)
        found[code | 0x80] = -found[code]
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_is_the_number_of_the_formula(name):
    values, wanted = TYPES[name].values, numbers_of(name)
    assert {code: float(values[code]) for code in wanted} == wanted
    assert all(np.isnan(values[code]) for code in set(range(256)) - set(wanted))
    assert TYPES[name].largest == {"e4m3": 448, "e5m2": 57344}[name] == max(wanted.values())


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_and_what_lies_between_round_as_ml_dtypes_rounds(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[name]
    every = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    numbers = np.unique(every[np.isfinite(every)])
    assert np.array_equal(TYPES[name].values[np.isfinite(every)], every[np.isfinite(every)])
    middle = ((numbers[1:].astype(np.float64) + numbers[:-1]) / 2).astype(np.float32)  # exact
    near = [np.nextafter(middle, np.float32(sign * np.inf)) for sign in (1, -1)]
    some = np.random.default_rng(0).uniform(-1, 1, 100_000) ** 9 * float(numbers[-1])
    values = np.concatenate([numbers, middle, *near, some.astype(np.float32)])
    assert np.array_equal(TYPES[name].rounded(values), values.astype(kind).view(np.uint8))


@pytest.mark.parametrize("name", FORMATS)
@given(st.floats(min_value=-F32_MAX, max_value=F32_MAX, width=32))
def test_the_nearest_number_is_taken_and_beyond_the_largest_that(name, value):
    wanted = {code: Fraction(number) for code, number in numbers_of(name).items()}
    code = int(TYPES[name].rounded(np.array([value], np.float32))[0])
    lost = {other: abs(number - Fraction(value)) for other, number in wanted.items()}
    least = min(lost.values())
    assert lost[code] == least
    ties = [other for other in lost if lost[other] == least and (wanted[other] or other == code)]
    assert len(ties) == 1 or code % 2 == 0
    assert code >> 7 == np.signbit(value)


def naive(rows, scheme):
    """Codes' values and scales of a whole matrix: every weight by itself, in float64 but for the division."""
    count, inputs = rows.shape
    numbers = np.array(sorted(numbers_of(scheme.format).values()))
    found, scales = np.empty(rows.shape), np.empty(rows.shape, np.float32)
    for n in range(count):
        for k in range(inputs):
            match scheme.scaling:
                case "row":
                    shared = rows[n]
                case "tensor":
                    shared = rows
                case _:
                    top, left = n // BLOCK_SIDE * BLOCK_SIDE, k // BLOCK_SIDE * BLOCK_SIDE
                    shared = rows[top : top + BLOCK_SIDE, left : left + BLOCK_SIDE]
            scales[n, k] = np.abs(shared).max() / np.float32(numbers[-1])
            wanted = float(rows[n, k] / scales[n, k]) if scales[n, k] else 0.0
            found[n, k] = numbers[np.abs(numbers - wanted).argmin()]
    return found, scales


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_matrix_are_those_of_a_naive_reference(name):
    scheme = SCHEMES[name]
    rows = np.random.default_rng(1).standard_normal((140, 150)).astype(np.float32)
    rows[:, ::5] *= np.exp2(np.random.default_rng(2).integers(-14, 1, (140, 30))).astype(np.float32)
    rows[3] = 0
    stored = quantize_rows(rows, scheme)
    numbers, scales = naive(rows, scheme)
    assert np.array_equal(TYPES[scheme.format].values[stored.codes], numbers.astype(np.float32))
    assert stored.scale.shape == (140, 2 if scheme.scaling == "block" else 1)
    assert np.array_equal(dequantize_rows(stored, scheme), numbers.astype(np.float32) * scales)


@given(hnp.arrays(np.float32, (3, 20), elements=st.floats(-(2.0**100), 2.0**100, width=32)), st.sampled_from(NAMES))
def test_half_a_step_is_the_most_that_is_lost(rows, name):
    scheme = SCHEMES[name]
    numbers = TYPES[scheme.format]
    stored = quantize_rows(rows, scheme)
    scale = np.broadcast_to(stored.scale.astype(np.float64), rows.shape)
    exact = np.abs(rows.astype(np.float64))
    half = np.maximum(exact * 2.0 ** -(numbers.fraction_bits + 1), scale * numbers.values[1] / 2)
    rounding = 4 * 2.0**-24 * exact + 448 * 2.0**-149  # of the scale and the quotient; scales that are subnormal
    assert (np.abs(dequantize_rows(stored, scheme) - rows.astype(np.float64)) <= half + rounding).all()


@pytest.mark.parametrize("name", NAMES)
def test_any_finite_value_is_taken(name):
    rows = np.array([[F32_MAX, -F32_MAX, 1.0, 0.0], [1e-45, -1e-40, 1e-38, 0.0]], np.float32)
    values = dequantize_rows(quantize_rows(rows, SCHEMES[name]), SCHEMES[name])
    assert values[0, :2] == pytest.approx([F32_MAX, -F32_MAX], rel=2.0**-23)
    assert np.isfinite(values).all()
    assert not values[:, 3].any()


@pytest.mark.parametrize("name", NAMES)
def test_ranges_of_rows_have_the_scales_of_the_whole_matrix(name, source):
    scheme = SCHEMES[name]
    rows = np.random.default_rng(3).standard_normal((300, 200)).astype(np.float32)
    rows[5, 7], rows[290, 150] = 30, -50
    parts = rows[:170], rows[170:]
    wanted = [quantize_rows(part, scheme) for part in parts]
    stack = Stacked(tuple(Stored(source(part), scheme) for part in parts))
    with SourceFiles() as files:
        for start, stop in ((0, 300), (0, 16), (96, 144), (160, 176), (176, 300)):
            found = evaluate_stored(stack, start, stop, files)
            assert isinstance(found, QuantizedRows)
            assert np.array_equal(found.codes, np.concatenate([each.codes for each in wanted])[start:stop])
            assert np.array_equal(found.scale, np.concatenate([each.scale for each in wanted])[start:stop])


@pytest.mark.parametrize(
    ("dtype", "block", "kept"),
    [
        ("f8_e4m3", (1, 256), "fp8"),
        ("f8_e4m3", (256, 256), "fp8-tensor"),
        ("f8_e4m3", (128, 128), "fp8-b128"),
        ("f8_e5m2", (1, 256), "fp8-e5m2"),
        ("f8_e5m2", (128, 128), None),  # no kernel reads it
        ("f8_e4m3", (64, 64), None),
    ],
)
def test_codes_of_a_checkpoint_are_kept_where_a_kernel_takes_them(dtype, block, kept):
    codes = Source("f", "w", dtype, (256, 256), 0, 256 * 256)
    scales = Source("f", "s", "f32", (256 // block[0], 256 // block[1]), 0, 4)
    found = kept_scheme(Float8Codes(codes, scales, block, (256, 256)))
    assert (found and found.name) == kept
