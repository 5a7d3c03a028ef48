"""backends/onnx/layouts.py: what lies in the artifact stands for what the scheme says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.backends.onnx.layouts import (
    CODES,
    FLOAT8_CODES,
    FLOAT8_SCALES,
    SCALES,
    ZERO_POINTS,
    blocks_of,
    float8_values,
    laid_out,
    unpacked_rows,
)
from pyc.compiler.quantization import BLOCK, dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES, Dense, Float8, Int4Group, Int8Channel
from pyc.runtime.executors.onnx.engine import widened

QUANTIZED = {name: scheme for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense | Float8)}


def parts_of(scheme, rows, columns, seed):
    values = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    stored = quantize_rows(values, scheme)
    names = [CODES, SCALES, *([ZERO_POINTS] if stored.zero is not None else [])]
    return stored, {name: laid_out(stored, scheme, name) for name in names}


@pytest.mark.parametrize("name", QUANTIZED)
@given(rows=st.integers(1, 9), groups=st.integers(1, 5), seed=st.integers(0, 99))
def test_parts_are_unpacked_to_the_values_of_the_codes(name, rows, groups, seed):
    scheme = QUANTIZED[name]
    columns = groups * (32 if isinstance(scheme, Int8Channel) else max(scheme.group_size, BLOCK))
    stored, parts = parts_of(scheme, rows, columns, seed)
    blocks = blocks_of(scheme, columns)
    found = unpacked_rows(parts[CODES], parts[SCALES], parts.get(ZERO_POINTS), blocks.bits, blocks.block)
    assert np.array_equal(found, dequantize_rows(stored, scheme))


@pytest.mark.parametrize("columns", [1, 31, 45, 77])
def test_rows_of_int8_that_blocks_do_not_divide_are_padded_with_zeros(columns):
    scheme = SCHEMES["int8"]
    stored, parts = parts_of(scheme, 3, columns, 0)
    found = unpacked_rows(parts[CODES], parts[SCALES], None, 8, blocks_of(scheme, columns).block)
    assert np.array_equal(found[:, :columns], dequantize_rows(stored, scheme))
    assert not found[:, columns:].any()


def test_the_first_of_two_codes_in_a_byte_is_the_lower_half():
    """As the specification of MatMulNBits has it."""
    scheme = Int4Group(32)
    stored, parts = parts_of(scheme, 1, 32, 0)
    assert parts[CODES].shape == (1, 1, 16)
    assert parts[CODES][0, 0, 0] == stored.codes[0, 0] + 16 * stored.codes[0, 1]


def test_zero_points_of_an_odd_number_of_blocks_begin_each_row_at_a_byte():
    scheme = Int4Group(32, symmetric=False)
    stored, parts = parts_of(scheme, 2, 96, 3)
    assert parts[ZERO_POINTS].shape == (2, 2)
    assert (parts[ZERO_POINTS][:, 1] == stored.zero[:, 2]).all()


FLOATS = [name for name, scheme in SCHEMES.items() if isinstance(scheme, Float8)]


@given(st.sampled_from(FLOATS), st.integers(1, 9), st.integers(1, 300), st.integers(0, 99))
def test_floating_point_of_8_bits_is_what_its_codes_stand_for(name, rows, columns, seed):
    """As an export reads it, and as pyc's executor widens it."""
    scheme = SCHEMES[name]
    values = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    stored = quantize_rows(values, scheme)
    codes, scales = (laid_out(stored, scheme, layout) for layout in (FLOAT8_CODES, FLOAT8_SCALES))
    block = 128 if scheme.scaling == "block" else 0
    wanted = dequantize_rows(stored, scheme)
    assert np.array_equal(float8_values(codes, scales, scheme.format, block), wanted)
    assert np.array_equal(widened(codes, scales, scheme.format, block), wanted)


@pytest.mark.parametrize(
    ("shape", "float_format", "block", "message"),
    [
        ((3, 1), "e3m4", 0, "'e3m4'"),
        ((3, 2), "e4m3", 0, r"expected \[3, 1\]"),
        ((3, 1), "e4m3", 128, r"expected \[3, 2\]"),
    ],
)
def test_scales_that_do_not_fit_codes_are_refused(shape, float_format, block, message):
    with pytest.raises(ValueError, match=message):
        widened(np.zeros((3, 200), np.uint8), np.ones(shape, np.float32), float_format, block)
