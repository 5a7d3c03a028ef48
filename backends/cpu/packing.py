"""Packing in numpy: rows as their scheme stores them to the bytes of panels (`layouts`), and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.layouts import PANEL16, Layout, panel_layout
from pyc.backends.cpu.lookup_panels import lookup_values, pack_lookup
from pyc.compiler.evaluate import evaluate_rows, evaluate_stored, is_rounded, stored_scheme, unstored
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.fp4 import E4M3, exponent_bytes, exponent_scales, float_bytes
from pyc.compiler.fp8 import BLOCK_SIDE, TYPES
from pyc.compiler.quantization import BLOCK, QuantizedRows, StoredRows, store_rows
from pyc.compiler.scales import INT4_BINADES, LOOKUP_BINADES, Bytes, Floats, byte_scales, scale_bytes
from pyc.compiler.schemes import Dense, Float8, Int4Group, Int8Channel, LookupGroup
from pyc.compiler.ternary import TERNARY
from pyc.compiler.weights import Packed
from pyc.runtime.host.rounding import ceil_div, round_up

PackRows = Callable[[Floats, Layout], Bytes]


def store_panels(rows: Floats, layout: Layout) -> Bytes:
    """Return f32 `rows` [rows, K] as panels u8 [ceil(rows / 16), panel_bytes]: what every `PackRows` returns."""
    return pack_rows(store_rows(rows, layout.scheme), layout)


def evaluate_panels(
    expression: Packed, start: int, stop: int, files: SourceFiles, pack: PackRows = store_panels
) -> Bytes:
    """Return panels [start, stop) of 16 rows each, u8 [stop - start, panel_bytes]; `pack` quantizes and packs rows."""
    assert expression.layout == PANEL16, expression.layout
    base, columns = expression.base, expression.shape[1]
    scheme = stored_scheme(base)
    layout = panel_layout(scheme, columns)
    first, last = start * LANES, min(stop * LANES, expression.shape[0])
    has_own_scales = isinstance(scheme, LookupGroup) and scheme.scales != "short"
    if isinstance(scheme, Dense | Float8) or has_own_scales or is_rounded(base):
        return pack_rows(evaluate_stored(base, first, last, files), layout)
    return pack(evaluate_rows(unstored(base), first, last, files), layout)


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
        scale = _scales(panels, layout)
        if isinstance(layout.scheme, LookupGroup):
            values = lookup_values(panels, layout) * _by_input(scale, layout.scheme.group_size)
        elif isinstance(layout.scheme, Float8):
            values = TYPES[layout.scheme.format].values[_codes(data, layout)]
            values *= scale[:, :, None] if scale.ndim == 2 else _by_input(scale, BLOCK_SIDE)[:, :, : values.shape[2]]
        elif isinstance(layout.scheme, Int8Channel):
            values = (_codes(data, layout).astype(np.float32) - 128) * scale[:, :, None]
        else:
            group = layout.scheme.group_size
            middle = 8 if isinstance(layout.scheme, Int4Group) else 128
            zero = np.full_like(scale, middle) if layout.zeros is None else layout.zeros.view(panels)
            wide = [_by_input(part.astype(np.float32), group) for part in (scale, zero)]
            values = (_codes(data, layout).astype(np.float32) - wide[1]) * wide[0]
    return np.ascontiguousarray(values.reshape(count * LANES, -1)[:rows, : layout.inputs])


def _by_input(of_groups: Floats, group: int) -> Floats:
    """Return values [panels, groups, 16] as [panels, 16, groups * group]."""
    return np.repeat(of_groups.swapaxes(1, 2), group, 2)


def _whole_panels(values: NDArray[np.generic], width: int, fill: float) -> NDArray[np.generic]:
    """Return [rows, n] as [panels, 16, width]; missing values are `fill`. A view where none are missing."""
    count, given = values.shape
    panels = ceil_div(count, LANES)
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
    out[:, : layout.data.offset] = 0
    panels = out.shape[0]
    target = out[:, layout.data.offset : layout.data.end].view(np.uint32).reshape(panels, -1, LANES)
    _pack_scales(stored, layout, out)
    if isinstance(layout.scheme, LookupGroup):
        nothing = TERNARY.nearest(np.zeros(1, np.float32), 0)[0] if layout.scheme.scales == "row" else 0
        pack_lookup(_whole_panels(stored.codes, layout.inputs, nothing), layout, out)
        return
    if not isinstance(layout.scheme, Int4Group):
        nothing = 0 if isinstance(layout.scheme, Float8) else 128
        codes = _whole_panels(stored.codes, layout.data.shape[0] * 4, nothing)
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
    """Write the scales of codes; rows past the last one get scales of zero, or a byte of zero and a base."""
    scale: NDArray[np.generic] = stored.scale
    if layout.row_factors is not None:
        assert stored.outer is not None
        layout.row_factors.view(out)[...] = _whole_panels(stored.outer, 1, 0)[:, :, 0]
    if layout.scales is None:
        return
    if isinstance(layout.scheme, LookupGroup) and layout.scheme.scales != "short":
        as_bytes = exponent_bytes if layout.scheme.scales == "e8m0" else float_bytes
        scale = as_bytes(stored.scale.astype(np.float32))
    if layout.row_exponents is not None:
        scale, base = scale_bytes(stored.scale.astype(np.float32), _binades(layout))
        layout.row_exponents.view(out)[...] = _whole_panels(base[:, None], 1, _base_of_no_row(layout))[:, :, 0]
    whole = _whole_panels(scale, scale.shape[1], 0)
    of_rows = len(layout.scales.shape) == 1
    layout.scales.view(out)[...] = whole[:, :, 0] if of_rows else whole.swapaxes(1, 2)


def _scales(panels: Bytes, layout: Layout) -> Floats:
    """Return the scales of panels as f32 [panels, groups, 16], or [panels, 16]."""
    if layout.row_factors is not None:
        factors = layout.row_factors.view(panels).astype(np.float32)[:, None]
        if layout.scales is None:
            return np.repeat(factors, layout.inputs // BLOCK, axis=1)
        found: Floats = E4M3.values[layout.scales.view(panels).astype(np.uint8)] * factors
        return found
    assert layout.scales is not None
    scale = layout.scales.view(panels)
    if isinstance(layout.scheme, LookupGroup) and layout.scheme.scales == "e8m0":
        return exponent_scales(scale.astype(np.uint8))
    if layout.row_exponents is None:
        return scale.astype(np.float32)
    rows = scale.astype(np.uint8).swapaxes(1, 2)
    return byte_scales(rows, layout.row_exponents.view(panels).astype(np.float32), _binades(layout)).swapaxes(1, 2)


def _base_of_no_row(layout: Layout) -> float:
    """Return the base of rows past the last one. Codes of lookup tables may have none for zero."""
    return 2.0**-24 if isinstance(layout.scheme, LookupGroup) else 1


def _binades(layout: Layout) -> int:
    return LOOKUP_BINADES if isinstance(layout.scheme, LookupGroup) else INT4_BINADES


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
