"""backends/cuda/layouts.py: what lies in the artifact stands for what the scheme says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.backends.cuda.layouts import laid_out, layouts_of
from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.fp8 import TYPES
from pyc.compiler.quantization import QuantizedRows, dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES, Dense, Float8, Int4Group, Int8Channel, LookupGroup
from pyc.runtime.errors import QuantizeError

QUANTIZED = {name: scheme for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense)}


def nibbles(packed, width):
    flat = packed.reshape(len(packed), -1)
    return np.stack([flat & 15, flat >> 4], axis=2).reshape(len(packed), -1)[:, :width]


def plane_code(packed, row, column, bits):
    """A code of 5, 3 or 2 bits, by the sentences in docs/tensor-layouts.md."""
    block = packed[row, column // 32]
    t, j = column % 32 // 8, column % 8
    if bits == 5:
        return (int(block[:16].view("<u4")[t]) >> 4 * j & 15) + 16 * (int(block[16:].view("<u4")[0]) >> (4 * j + t) & 1)
    code = int(block[:8].view("<u2")[t]) >> (4 * (j % 4) + 2 * (j // 4)) & 3
    if bits == 3:
        code += 4 * (int(block[8:].view("<u4")[0]) >> (4 * j + t) & 1)
    return code


def value_of(parts, scheme, row, column):
    """One weight, out of the bytes of its parts by the formulas of the module's head."""
    codes, scales = parts["codes"], parts["scales"]
    if isinstance(scheme, Float8):
        scale = scales[row, column // 128 if scales.shape[1] > 1 else 0]
        return TYPES[scheme.format].values[codes[row, column]] * scale
    flat = codes.reshape(len(codes), -1)
    if isinstance(scheme, Int8Channel):
        return (int(flat[row, column]) - 128) * scales[row, 0]
    group = column // scheme.group_size
    if "zero_points" in parts:
        zero = nibbles(parts["zero_points"], group + 1)[row, group]
        return (int(nibbles(codes, column + 1)[row, column]) - int(zero)) * np.float32(scales[row, group])
    if scheme == SCHEMES["ternary"]:
        assert codes.shape[2] == 8 and set(parts) == {"codes", "scales"}
        return scales[row, 0] * np.float32(plane_code(codes, row, column, 2) - 1)
    if scales.dtype == np.float16:
        return (int(flat[row, column]) - 128) * np.float32(scales[row, group])
    bits = int(scales[row, group])
    if isinstance(scheme, Int4Group):
        return np.uint32(bits << 16).view(np.float32) * (int(nibbles(codes, column + 1)[row, column]) - 8)
    book = CODEBOOKS[scheme.codebook]
    if book.bits == 4:
        code = int(nibbles(codes, column + 1)[row, column])
    else:
        assert codes.shape[1:] == (scales.shape[1] * scheme.group_size // 32, 4 * book.bits)
        code = plane_code(codes, row, column, book.bits)
    entry = book.entries[code] + (book.shift if bits & 1 else 0)
    scale = np.uint32((bits & ~1) << 16).view(np.float32)
    return scale * (parts["factors"][row, 0] if "factors" in parts else np.float32(1)) * np.float32(entry)


@pytest.mark.parametrize("name", sorted(QUANTIZED))
@given(rows=st.integers(1, 4), groups=st.integers(1, 3), seed=st.integers(0, 99))
def test_parts_stand_for_the_weights(name, rows, groups, seed):
    scheme = QUANTIZED[name]
    columns = groups * getattr(scheme, "group_size", 40)
    columns += columns % 32 if isinstance(scheme, LookupGroup) else 0
    values = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    stored = quantize_rows(values, scheme)
    parts = {part: laid_out(stored, scheme, layout) for part, layout in layouts_of(scheme).items()}
    wanted = dequantize_rows(stored, scheme)
    some = {(0, 0), (rows - 1, columns - 1), (rows // 2, columns // 2), (0, columns // 3)}
    for row, column in some | {(rows - 1, column) for column in range(min(32, columns))}:
        assert value_of(parts, scheme, row, column) == pytest.approx(wanted[row, column], rel=1e-6, abs=1e-30)


def test_a_scale_that_16_bits_do_not_hold_is_refused():
    scheme = Int4Group(32)
    stored = QuantizedRows(np.zeros((1, 32), np.uint8), np.full((1, 1), 1.0001, np.float32), None)
    with pytest.raises(QuantizeError, match="significant bits"):
        laid_out(stored, scheme, layouts_of(scheme)["scales"])
