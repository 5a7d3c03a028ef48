"""Panels and quantized activation rows: offsets, pack/unpack identity, and the bytes the documentation promises."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.backends.cpu.layouts import activation_layout, panel_layout
from pyc.backends.cpu.packing import pack_rows, unpack_rows
from pyc.compiler.fp8 import TYPES
from pyc.compiler.quantization import QuantizedRows, dequantize_rows, store_rows
from pyc.compiler.schemes import SCHEMES, Dense, Float8, Int4Group, Int8Channel, Int8Group, LookupGroup
from pyc.runtime.errors import QuantizeError

NAMES = [name for name in SCHEMES if name != "none"]


def stored_and_values(
    name: str, rows: int, inputs: int
) -> tuple[
    QuantizedRows | np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    np.ndarray[tuple[int, ...], np.dtype[np.float32]],
]:
    """Random rows as the scheme stores them, and the f32 values they stand for."""
    w = np.random.default_rng([rows, inputs]).standard_normal((rows, inputs)).astype(np.float32)
    scheme = SCHEMES[name]
    stored = store_rows(w, scheme)
    if isinstance(stored, QuantizedRows):
        assert not isinstance(scheme, Dense)
        return stored, dequantize_rows(stored, scheme)
    if name == "bf16":
        return stored, (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored, stored.astype(np.float32)


@given(st.sampled_from(NAMES), st.integers(1, 50), st.integers(1, 3), st.integers(0, 127))
def test_unpack_inverts_pack(name: str, rows: int, groups: int, extra: int) -> None:
    scheme = SCHEMES[name]
    inputs = groups * 32 + extra - 31
    if isinstance(scheme, Int4Group | LookupGroup):
        inputs = groups * max(scheme.group_size, 32)
    inputs = max(inputs, 1)
    stored, values = stored_and_values(name, rows, inputs)
    layout = panel_layout(scheme, inputs)
    panels = pack_rows(stored, layout)
    assert panels.shape == (layout.panels(rows), layout.panel_bytes)
    assert panels.nbytes == layout.size_bytes(rows)
    np.testing.assert_array_equal(unpack_rows(panels, layout, rows), values)
    beyond = unpack_rows(panels, layout, panels.shape[0] * 16)[rows:]
    assert np.abs(beyond).max(initial=0) <= (2.0**-18 if isinstance(scheme, LookupGroup) else 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_byte_is_written(name: str) -> None:
    scheme = SCHEMES[name]
    inputs = 128 if isinstance(scheme, Int4Group | LookupGroup) else 45
    stored, _ = stored_and_values(name, 21, inputs)
    layout = panel_layout(scheme, inputs)
    first, second = (np.full((2, layout.panel_bytes), fill, np.uint8) for fill in (0x00, 0xFF))
    pack_rows(stored, layout, first)
    pack_rows(stored, layout, second)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("fp8-tensor", "fp8-b128", "nvfp4")])
def test_panels_of_ranges_join(name: str) -> None:
    scheme = SCHEMES[name]
    inputs = 256 if isinstance(scheme, Int4Group | LookupGroup) else 77
    w = np.random.default_rng(3).standard_normal((40, inputs)).astype(np.float32)
    layout = panel_layout(scheme, inputs)
    whole = pack_rows(store_rows(w, scheme), layout)
    parts = [pack_rows(store_rows(w[start : start + 16], scheme), layout) for start in (0, 16, 32)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inputs", [1, 31, 33, 128, 3072])
def test_sections_are_aligned_and_apart(name: str, inputs: int) -> None:
    scheme = SCHEMES[name]
    if isinstance(scheme, Int4Group | LookupGroup) and inputs % max(scheme.group_size, 32):
        with pytest.raises(QuantizeError, match="not divisible"):
            panel_layout(scheme, inputs)
        return
    layout = panel_layout(scheme, inputs)
    every = (layout.scales, layout.zeros, layout.row_exponents, layout.row_factors, layout.data)
    sections = [section for section in every if section is not None]
    for before, after in pairwise(sections):
        assert before.end <= after.offset
    assert layout.data.offset % 64 == 0
    assert layout.panel_bytes % 64 == 0
    assert sections[-1].end <= layout.panel_bytes < sections[-1].end + 64


def test_documented_bytes_of_int4() -> None:
    codes = (np.arange(16)[:, None] * 7 + np.arange(64)[None, :] * 3).astype(np.uint8) % 16
    scale = np.arange(32, dtype=np.float16).reshape(16, 2)
    zero = np.arange(32, dtype=np.uint8).reshape(16, 2) % 16
    layout = panel_layout(Int4Group(32, symmetric=False), 64)
    panel = pack_rows(QuantizedRows(codes, scale, zero), layout)[0]
    assert (layout.data.offset, layout.panel_bytes) == (128, 128 + 512)
    for lane in range(16):
        for g in range(2):
            at = 2 * (16 * g + lane)
            assert panel[at : at + 2].view(np.float16)[0] == scale[lane, g]
            assert panel[64 + 16 * g + lane] == zero[lane, g]
        for b in range(2):
            for j in range(4):
                for i in range(4):
                    byte = int(panel[128 + 256 * b + 64 * j + 4 * lane + i])
                    assert byte & 15 == codes[lane, 32 * b + 4 * j + i]
                    assert byte >> 4 == codes[lane, 32 * b + 16 + 4 * j + i]


def test_documented_bytes_of_int8() -> None:
    codes = (np.arange(16 * 33) % 255 + 1).astype(np.uint8).reshape(16, 33)
    scale = np.arange(16, dtype=np.float32)[:, None]
    layout = panel_layout(Int8Channel(), 33)
    panel = pack_rows(QuantizedRows(codes, scale, None), layout)[0]
    assert (layout.data.offset, layout.panel_bytes) == (64, 64 + 64 * 16)
    np.testing.assert_array_equal(panel[:64].view(np.float32), scale[:, 0])
    data = panel[64:].reshape(16, 16, 4)
    for k in range(64):
        expected = codes[:, k] if k < 33 else np.full(16, 128)
        np.testing.assert_array_equal(data[k // 4, :, k % 4], expected)


def test_documented_bytes_of_int8_in_groups() -> None:
    codes = (np.arange(16 * 65) % 255 + 1).astype(np.uint8).reshape(16, 65)
    scale = np.arange(48, dtype=np.float16).reshape(16, 3)
    layout = panel_layout(Int8Group(32), 65)
    panel = pack_rows(QuantizedRows(codes, scale, None), layout)[0]
    assert (layout.data.offset, layout.panel_bytes) == (128, 128 + 96 * 16)
    np.testing.assert_array_equal(panel[:96].view(np.float16).reshape(3, 16), scale.T)
    assert not panel[96:128].any()
    data = panel[128:].reshape(24, 16, 4)
    for k in range(96):
        expected = codes[:, k] if k < 65 else np.full(16, 128)
        np.testing.assert_array_equal(data[k // 4, :, k % 4], expected)


def test_documented_bytes_of_fp8() -> None:
    codes = (np.arange(16 * 130) % 256).astype(np.uint8).reshape(16, 130)
    for scaling, groups in (("row", 1), ("block", 2)):
        scale = np.arange(16 * groups, dtype=np.float32).reshape(16, groups)
        layout = panel_layout(Float8("e4m3", scaling), 130)
        panel = pack_rows(QuantizedRows(codes, scale, None), layout)[0]
        assert (layout.data.offset, layout.panel_bytes) == (64 * groups, 64 * groups + 160 * 16)
        np.testing.assert_array_equal(panel[: 64 * groups].view(np.float32).reshape(groups, 16), scale.T)
        data = panel[64 * groups :].reshape(40, 16, 4)
        for k in range(160):
            np.testing.assert_array_equal(data[k // 4, :, k % 4], codes[:, k] if k < 130 else np.zeros(16))


def test_documented_bytes_of_fp4_and_ternary() -> None:
    codes = (np.arange(16 * 64).reshape(16, 64) * 5 % 16).astype(np.uint8)
    factors = np.arange(1, 17, dtype=np.float32)[:, None]
    bytes_of = (np.arange(16 * 4).reshape(16, 4) + 100).astype(np.uint8)
    powers, numbers = np.exp2(bytes_of[:, :2] - 128.0).astype(np.float32), TYPES["e4m3"].values[bytes_of - 60]
    mx, nv, row = (panel_layout(SCHEMES[name], 64) for name in ("mxfp4", "nvfp4", "ternary"))
    assert [(layout.data.offset, layout.panel_bytes) for layout in (mx, nv, row)] == [(64, 576), (128, 640), (64, 320)]
    panel = pack_rows(QuantizedRows(codes, powers, None), mx)[0]
    np.testing.assert_array_equal(panel[:32].reshape(2, 16), bytes_of[:, :2].T)
    fine = pack_rows(QuantizedRows(codes, numbers, None, factors), nv)[0]
    np.testing.assert_array_equal(fine[:64].reshape(4, 16), bytes_of.T - 60)
    np.testing.assert_array_equal(fine[64:128].view(np.float32), factors[:, 0])
    np.testing.assert_array_equal(panel[64:], fine[128:])
    for k in range(64):
        byte = fine[128 + k // 32 * 256 + k % 16 // 4 * 64 :][k % 4 : 64 : 4]
        np.testing.assert_array_equal(byte >> k % 32 // 16 * 4 & 15, codes[:, k])
    thirds = codes % 3
    panel = pack_rows(QuantizedRows(thirds, np.ones((16, 2), np.float32), None, factors), row)[0]
    np.testing.assert_array_equal(panel[:64].view(np.float32), factors[:, 0])
    for k in range(64):
        j = k % 32 // 4
        byte = panel[64 + k // 32 * 128 + j % 2 * 64 :][k % 4 : 64 : 4]
        np.testing.assert_array_equal(byte >> j // 2 * 2 & 3, thirds[:, k])


def test_documented_bytes_of_dense() -> None:
    w = np.arange(16 * 3, dtype=np.float32).reshape(16, 3)
    panel = pack_rows(w, panel_layout(Dense("f32"), 3))[0]
    np.testing.assert_array_equal(panel.view(np.float32).reshape(3, 16), w.T)
    halves = (
        pack_rows(w.astype(np.float16), panel_layout(Dense("f16"), 3))[0].view(np.float16).reshape(2, 16, 2)
    )
    np.testing.assert_array_equal(halves[1, :, 0], w[:, 2])
    assert not halves[1, :, 1].any()


def test_a_dense_layout_needs_a_dtype() -> None:
    with pytest.raises(ValueError, match="needs the dtype"):
        panel_layout(Dense(), 8)


@pytest.mark.parametrize(
    ("inputs", "expected"), [(1, (64, 128, 192)), (1024, (128, 256, 1280)), (1056, (192, 384, 1472))]
)
def test_activation_records(inputs: int, expected: tuple[int, int, int]) -> None:
    layout = activation_layout(inputs)
    assert (layout.corrections.offset, layout.data.offset, layout.row_bytes) == expected
    assert layout.scales.shape == layout.corrections.shape == (-(-inputs // 32),)
