"""How weights and activations lie in memory: offsets as data, and packing in numpy.

A weight [N, K] is stored as u8 [ceil(N / 16), panel_bytes]: a panel holds 16 consecutive rows (rows past N
are zero weights). A vector lane is a row, and a lane holds 4 bytes of consecutive k, so the same bytes suit
AVX-512, AVX2, NEON and the tiles of AMX. Little-endian; `panel_bytes` is a multiple of 64. Sections of a
panel, in order:

- f32: data f32 [K, 16]
- f16, bf16: data [ceil(K / 2), 16, 2], zero where k = K
- int8: scales f32 [16]; data u8 [K32 / 4, 16, 4] = q + 128, K32 = K rounded up to 32, q = 0 where k >= K
- int8, group g: scales f16 [K32 / g, 16]; zero bytes up to a multiple of 64; data as int8
- int4, group g: scales u8 [K / g, 16]; bases f32 [16]; zero bytes up to a multiple of 64; data u8 [K / 32, 4, 16, 4]
- asymmetric int4, group g: scales f16 [K / g, 16]; zeros u8 [K / g, 16]; zero bytes up to a multiple of 64; data as
  int4

A scale of one byte is a sign, four bits e and three bits f: the row's base times +-(1 + f / 8) 2^e.

A byte (b, j, lane, i) of int4 data holds q[32 b + 4 j + i] in its low nibble and q[32 b + 16 + 4 j + i] in
its high nibble, so that one load gives two operands of a 4-byte dot product by a mask and a shift.

A row of quantized activations is one record: scales f32 [G] | sums i32 [G] | data i8 [K32], G = K32 / 32,
each section and the record itself padded with zeros to 64 bytes; see `ActivationLayout`. A record of bf16 has room
for f32, which libraries without products of bf16 keep there, and for 64 bytes more (`record_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.quantization import (
    BLOCK,
    Bytes,
    Floats,
    QuantizedRows,
    StoredRows,
    byte_scales,
    require_divisible,
    round_up,
    scale_bytes,
)
from pyc.compiler.schemes import Dense, Int4Group, Int8Channel, Int8Group, Records, Scheme

PANEL16 = "panel16"
"""Name of the layout in `weights.Packed.layout`."""

LANES = 16
"""Rows in a panel."""

ALIGNMENT = 64
"""Every section that a kernel loads whole vectors from, and every panel, starts at a multiple of this."""

_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1, "i8": 1, "i32": 4}
_NUMPY = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "u8": "u1", "i8": "i1", "i32": "<i4"}


@dataclass(frozen=True, slots=True)
class Section:
    """An array inside a panel or record: byte offset from its start, dtype as in `runtime.artifact.dtypes`, shape."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the array, padding not counted."""
        return prod(self.shape) * _ITEM_BYTES[self.dtype]

    @property
    def end(self) -> int:
        """Offset of the first byte behind the array."""
        return self.offset + self.size_bytes

    def view(self, records: Bytes) -> NDArray[np.generic]:
        """Return the array of each of `records` u8 [n, record_bytes] as a writable view [n, *shape]."""
        array: NDArray[np.generic] = records[:, self.offset : self.end].view(_NUMPY[self.dtype])
        strides = (records.strides[0], *np.empty(self.shape, array.dtype).strides)
        return np.lib.stride_tricks.as_strided(array, (records.shape[0], *self.shape), strides)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of one panel of 16 rows of `inputs` weights lie, for one scheme."""

    scheme: Scheme
    inputs: int
    scales: Section | None
    zeros: Section | None
    bases: Section | None
    data: Section
    panel_bytes: int

    def panels(self, rows: int) -> int:
        """Return the number of panels that `rows` rows take."""
        return -(-rows // LANES)

    def size_bytes(self, rows: int) -> int:
        """Return the bytes that a weight of `rows` rows takes."""
        return self.panels(rows) * self.panel_bytes


@dataclass(frozen=True, slots=True)
class ActivationLayout:
    """Where the parts of one row of int8 activations lie; `row_bytes` is the stride between rows.

    Of many rows, libraries may put the parts elsewhere in the same bytes (templates/cpu/include/pyc_records.h).
    """

    inputs: int
    scales: Section
    starts: Section
    data: Section
    row_bytes: int


def panel_layout(scheme: Scheme, inputs: int) -> Layout:
    """Return the layout of a weight [any, inputs] under `scheme`; `Dense.dtype` must be set.

    Raises QuantizeError when the groups of the scheme do not divide `inputs`.
    """
    require_divisible(scheme, inputs)
    scales = zeros = bases = None
    match scheme:
        case Dense("f32"):
            data = Section(0, "f32", (inputs, LANES))
        case Dense("f16" | "bf16" as dtype):
            data = Section(0, dtype, (-(-inputs // 2), LANES, 2))
        case Int8Channel():
            scales = Section(0, "f32", (LANES,))
            data = Section(scales.end, "u8", (round_up(inputs, BLOCK) // 4, LANES, 4))
        case Int8Group(group_size):
            padded = round_up(inputs, BLOCK)
            scales = Section(0, "f16", (padded // group_size, LANES))
            data = Section(round_up(scales.end, ALIGNMENT), "u8", (padded // 4, LANES, 4))
        case Int4Group(group_size, symmetric=True):
            scales = Section(0, "u8", (inputs // group_size, LANES))
            bases = Section(scales.end, "f32", (LANES,))
            data = Section(round_up(bases.end, ALIGNMENT), "u8", (inputs // BLOCK, 4, LANES, 4))
        case Int4Group(group_size):
            scales = Section(0, "f16", (inputs // group_size, LANES))
            zeros = Section(scales.end, "u8", (inputs // group_size, LANES))
            data = Section(round_up(zeros.end, ALIGNMENT), "u8", (inputs // BLOCK, 4, LANES, 4))
        case Dense(other):
            raise ValueError(f"a layout needs the dtype of a dense weight, f32, f16 or bf16; got {other}")
    return Layout(scheme, inputs, scales, zeros, bases, data, round_up(data.end, ALIGNMENT))


def activation_layout(inputs: int) -> ActivationLayout:
    """Return the layout of quantized activation rows [any, inputs]."""
    groups = -(-inputs // BLOCK)
    scales = Section(0, "f32", (groups,))
    starts = Section(round_up(scales.end, ALIGNMENT), "i32", (groups,))
    data = Section(round_up(starts.end, ALIGNMENT), "i8", (groups * BLOCK,))
    return ActivationLayout(inputs, scales, starts, data, round_up(data.end, ALIGNMENT))


def record_bytes(inputs: int, records: Records) -> int:
    """Return the room that a record of rows [any, inputs] has: of many rows, libraries may use it in other ways.

    Records of bf16 are f32 in some libraries, and 64 bytes further apart than they need be: with 4096 between them, as
    1024 inputs would have, the rows of a tile share the sets of the first-level cache. Libraries that multiply tiles
    keep bf16 in the place of int8 (templates/cpu/include/pyc_amx_records.h).
    """
    if records == "bf16":
        return round_up(4 * inputs, ALIGNMENT) + ALIGNMENT
    return max(activation_layout(inputs).row_bytes, 2 * round_up(inputs, BLOCK))


def pack_rows(stored: StoredRows, layout: Layout, out: Bytes | None = None) -> Bytes:
    """Return rows [rows, K] as panels u8 [ceil(rows / 16), panel_bytes], in `out` when it is given.

    `stored` is what `quantization.store_rows` gives for `layout.scheme`. Every range of rows but the last
    of a weight must be a multiple of 16, or the panels of two ranges would not join.
    """
    values = stored.codes if isinstance(stored, QuantizedRows) else stored
    count, inputs = values.shape
    assert inputs == layout.inputs, (inputs, layout.inputs)
    panels = layout.panels(count)
    if out is None:
        out = np.empty((panels, layout.panel_bytes), np.uint8)
    assert out.shape == (panels, layout.panel_bytes)
    assert out.flags.c_contiguous
    out[:, layout.data.end :] = 0
    if isinstance(stored, QuantizedRows):
        _pack_codes(stored, layout, out)
    else:
        _pack_dense(stored, layout, out)
    return out


def unpack_rows(panels: Bytes, layout: Layout, rows: int) -> Floats:
    """Return the f32 values [rows, K] that panels u8 [ceil(rows / 16), panel_bytes] stand for."""
    data = layout.data.view(panels)
    count = panels.shape[0]
    if isinstance(layout.scheme, Dense):
        values = _dense_values(data, layout)
    else:
        assert layout.scales is not None
        codes = _codes(data, layout)
        scale = _scales(panels, layout)
        if isinstance(layout.scheme, Int8Channel):
            values = (codes.astype(np.float32) - 128) * scale[:, :, None]
        else:
            group = layout.scheme.group_size
            middle = 8 if isinstance(layout.scheme, Int4Group) else 128
            zero = np.full_like(scale, middle) if layout.zeros is None else layout.zeros.view(panels)
            wide = [np.repeat(part.astype(np.float32).swapaxes(1, 2), group, 2) for part in (scale, zero)]
            values = (codes.astype(np.float32) - wide[1]) * wide[0]
    return np.ascontiguousarray(values.reshape(count * LANES, -1)[:rows, : layout.inputs])


def _whole_panels(values: NDArray[np.generic], width: int, fill: int) -> NDArray[np.generic]:
    """Return [rows, n] as [panels, 16, width]; missing values are `fill`. A view where none are missing."""
    count, given = values.shape
    panels = -(-count // LANES)
    if count == panels * LANES and given == width:
        return values.reshape(panels, LANES, width)
    padded = np.full((panels * LANES, width), fill, values.dtype)
    padded[:count, :given] = values
    return padded.reshape(panels, LANES, width)


def _pack_dense(values: NDArray[np.generic], layout: Layout, out: Bytes) -> None:
    """Write f32 [rows, K] as [K, 16], or 16-bit values two by two as 32-bit words [K / 2, 16]."""
    per_word = 4 // values.dtype.itemsize
    words = _whole_panels(values, round_up(layout.inputs, per_word), 0).view(np.uint32)
    target = out[:, : layout.data.end].view(np.uint32).reshape(out.shape[0], -1, LANES)
    target[...] = words.swapaxes(1, 2)


def _pack_codes(stored: QuantizedRows, layout: Layout, out: Bytes) -> None:
    """Write codes and their scales; data moves as 32-bit words, four codes (int8) or eight (int4) each."""
    assert layout.scales is not None
    out[:, : layout.data.offset] = 0
    panels = out.shape[0]
    target = out[:, layout.data.offset : layout.data.end].view(np.uint32).reshape(panels, -1, LANES)
    _pack_scales(stored, layout, out)
    if not isinstance(layout.scheme, Int4Group):
        codes = _whole_panels(stored.codes, layout.data.shape[0] * 4, 128)
        target[...] = codes.view(np.uint32).swapaxes(1, 2)
        return
    if layout.zeros is not None:
        assert stored.zero is not None
        layout.zeros.view(out)[...] = _whole_panels(stored.zero, stored.zero.shape[1], 0).swapaxes(1, 2)
    nothing = 0 if stored.zero is not None else 8
    halves = _whole_panels(stored.codes, layout.inputs, nothing).view(np.uint32).reshape(panels, LANES, -1, 2, 4)
    nibbles = halves[:, :, :, 1] << np.uint32(4)
    nibbles |= halves[:, :, :, 0]
    target[...] = nibbles.reshape(panels, LANES, -1).swapaxes(1, 2)


def _pack_scales(stored: QuantizedRows, layout: Layout, out: Bytes) -> None:
    """Write the scales of codes; rows past the last one get scales of zero, or a byte of zero and the base 1."""
    assert layout.scales is not None
    scale: NDArray[np.generic] = stored.scale
    if layout.bases is not None:
        scale, base = scale_bytes(stored.scale.astype(np.float32))
        layout.bases.view(out)[...] = _whole_panels(base[:, None], 1, 1)[:, :, 0]
    whole = _whole_panels(scale, scale.shape[1], 0)
    layout.scales.view(out)[...] = whole[:, :, 0] if isinstance(layout.scheme, Int8Channel) else whole.swapaxes(1, 2)


def _scales(panels: Bytes, layout: Layout) -> Floats:
    """Return the scales of panels as f32 [panels, groups, 16], or [panels, 16]."""
    assert layout.scales is not None
    scale = layout.scales.view(panels)
    if layout.bases is None:
        return scale.astype(np.float32)
    rows = scale.astype(np.uint8).swapaxes(1, 2)
    return byte_scales(rows, layout.bases.view(panels).astype(np.float32)).swapaxes(1, 2)


def _dense_values(data: NDArray[np.generic], layout: Layout) -> Floats:
    """Return dense panels as f32 [panels, 16, K or K + 1]."""
    if layout.data.dtype == "f32":
        return data.astype(np.float32).swapaxes(1, 2)
    pairs = data.swapaxes(1, 2).reshape(data.shape[0], LANES, -1)
    if layout.data.dtype == "f16":
        return pairs.astype(np.float32)
    return (pairs.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _codes(data: NDArray[np.generic], layout: Layout) -> NDArray[np.generic]:
    """Return the codes of quantized panels as [panels, 16, K32]."""
    panels = data.shape[0]
    if not isinstance(layout.scheme, Int4Group):
        return data.swapaxes(1, 2).reshape(panels, LANES, -1)
    low_high = np.stack([data.astype(np.uint8) & 15, data.astype(np.uint8) >> 4], axis=2)
    return np.moveaxis(low_high, 4, 1).reshape(panels, LANES, -1)
