"""Rows of weights that a checkpoint stores as codes (`compiler.codes`): as f32, or as codes of our own schemes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.codes import Codes, Float4Codes, Float8Codes, IntegerCodes, TableCodes, TernaryCodes
from pyc.compiler.evaluate_fp4 import (
    float4_rows,
    kept_float4,
    kept_float4_rows,
    kept_ternary,
    kept_ternary_rows,
    ternary_rows,
)
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.fp8 import BLOCK_SIDE, TYPES
from pyc.compiler.quantization import GROUP_SIZES, QuantizedRows
from pyc.compiler.schemes import (
    SCHEMES,
    Float8,
    Float8Format,
    Float8Scaling,
    Int4Group,
    Int8Channel,
    Int8Group,
    Quantized,
)
from pyc.compiler.source_values import Floats, read_columns, read_rows, widened
from pyc.compiler.sources import Source
from pyc.runtime.errors import IngestError, QuantizeError
from pyc.runtime.host.rounding import ceil_div

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of eight that each four bits of a word of AWQ hold, the lowest first."""

_LARGEST_HALF = 65504
_LEAST_HALF = np.float32(2.0**-14)
"""The least number that f16 has all its bits for."""

_FORMATS: Mapping[str, Float8Format] = {"f8_e4m3": "e4m3", "f8_e5m2": "e5m2"}
_SCALING: Mapping[tuple[int, int], Float8Scaling] = {(BLOCK_SIDE, BLOCK_SIDE): "block"}


def kept_scheme(codes: Codes) -> Quantized | None:
    """Return the scheme whose codes these are; None: a build has to round what they stand for."""
    if isinstance(codes, Float4Codes):
        return kept_float4(codes)
    if isinstance(codes, TernaryCodes):
        return kept_ternary(codes)
    if isinstance(codes, Float8Codes):
        scaling = _SCALING.get(codes.block) or ("tensor" if codes.block == codes.shape else None)
        scaling = "row" if codes.block == (1, codes.shape[1]) else scaling
        scheme = Float8(_FORMATS[codes.codes.dtype], scaling or "row")
        return scheme if scaling is not None and scheme.name in SCHEMES else None
    if not isinstance(codes, IntegerCodes) or codes.order is not None:
        return None
    whole_row = codes.group == codes.shape[1]
    if codes.bits == 4 and codes.group in GROUP_SIZES:
        return Int4Group(codes.group, symmetric=False)
    if codes.bits == 8 and codes.zeros is None and codes.zero == 128:
        if whole_row:
            return Int8Channel()
        return Int8Group(32) if codes.group == 32 else None
    return None


def kept_rows(codes: Codes, start: int, stop: int, files: SourceFiles) -> QuantizedRows:
    """Return rows [start, stop) as codes of `kept_scheme`; scales of groups are rounded to f16.

    Raises IngestError for a damaged tensor, QuantizeError for a scale beyond f16, and for a matrix all of whose scales
    are so small that f16 would round them further than any other.
    """
    if isinstance(codes, Float4Codes):
        return kept_float4_rows(codes, start, stop, files)
    if isinstance(codes, TernaryCodes):
        return kept_ternary_rows(codes, start, stop, files)
    if isinstance(codes, Float8Codes):
        return QuantizedRows(_float8(codes, start, stop, files), _spread_scales(codes, start, stop, files), None)
    assert isinstance(codes, IntegerCodes), type(codes).__name__
    scale = _scales(codes, start, stop, files) * np.float32(codes.factor)
    scheme = kept_scheme(codes)
    values = _integers(codes, start, stop, files)
    if isinstance(scheme, Int8Channel):
        return QuantizedRows(values, scale, None)
    if np.abs(scale).max(initial=0) > _LARGEST_HALF:
        raise QuantizeError(f"{codes.scales.tensor}: a scale of {np.abs(scale).max():g} is beyond f16 (65504)")
    half = scale.astype(np.float16)
    _require_precise(codes, scale, half, files)
    if isinstance(scheme, Int8Group):
        return QuantizedRows(values, half, None)
    return QuantizedRows(values, half, _zero_points(codes, start, stop, files).astype(np.uint8))


def _require_precise(codes: IntegerCodes, scale: Floats, half: NDArray[np.float16], files: SourceFiles) -> None:
    """Raise QuantizeError for scales that f16 cannot tell apart, unless others of the matrix are larger by far."""
    if np.abs(scale).max(initial=0) >= _LEAST_HALF or np.array_equal(half, scale):
        return
    whole = widened(codes.scales, read_rows(codes.scales, 0, codes.scales.shape[0], files))
    largest = np.abs(whole).max() * np.float32(codes.factor)
    if largest < _LEAST_HALF:
        raise QuantizeError(
            f"{codes.scales.tensor}: its largest scale is {largest:g}, which f16 rounds too far to keep these codes, "
            f"expected at least {_LEAST_HALF:.2g}; give the matrix another scheme, such as int8 or f32, by an override"
        )


def coded_rows(codes: Codes, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return the values of rows [start, stop), f32 [stop - start, K]. Raises IngestError as `evaluate_rows` does."""
    match codes:
        case IntegerCodes():
            return _integer_rows(codes, start, stop, files)
        case Float8Codes():
            return _float8_rows(codes, start, stop, files)
        case TableCodes():
            return _table_rows(codes, start, stop, files)
        case Float4Codes():
            return float4_rows(codes, start, stop, files)
        case TernaryCodes():
            return ternary_rows(codes, start, stop, files)


def _integer_rows(codes: IntegerCodes, start: int, stop: int, files: SourceFiles) -> Floats:
    columns = codes.shape[1]
    scale = _scales(codes, start, stop, files) * np.float32(codes.factor)
    zero = _zero_points(codes, start, stop, files)
    if codes.order is None:
        group = np.arange(columns) // codes.group
    else:
        group = read_rows(codes.order, 0, columns, files).astype(np.int64)
    values = _integers(codes, start, stop, files).astype(np.float32)
    values -= zero[:, group].astype(np.float32)
    values *= scale[:, group]
    return values


def _integers(codes: IntegerCodes, start: int, stop: int, files: SourceFiles) -> NDArray[np.uint8]:
    """Return codes u8 [stop - start, K]."""
    match codes.form:
        case "bytes":
            return (read_rows(codes.codes, start, stop, files).view(np.uint8)) ^ np.uint8(128)
        case "compressed":
            words = read_rows(codes.codes, start, stop, files)
            return np.ascontiguousarray(_unpacked(words, codes.bits)[:, : codes.shape[1]])
        case "gptq":
            words = read_columns(codes.codes, start, stop, files)
            return np.ascontiguousarray(_unpacked(words.T, codes.bits)[:, : codes.shape[1]])
        case "awq":
            return np.ascontiguousarray(_packed_outputs(codes, codes.codes, start, stop, files).T)


def _zero_points(codes: IntegerCodes, start: int, stop: int, files: SourceFiles) -> NDArray[np.int16]:
    """Return zero points i16 [stop - start, groups]."""
    if codes.zeros is None:
        return np.full((stop - start, _groups(codes)), codes.zero, np.int16)
    match codes.form:
        case "bytes":
            stored = read_rows(codes.zeros, start, stop, files).astype(np.int16) + 128
        case "compressed":
            per_word = 32 // codes.bits
            first, last = start // per_word, ceil_div(stop, per_word)
            words = read_rows(codes.zeros, first, last, files)
            by_row = _unpacked(words.T, codes.bits).T
            stored = by_row[start - first * per_word : stop - first * per_word].astype(np.int16)
        case "gptq" | "awq":
            stored = _packed_outputs(codes, codes.zeros, start, stop, files).T.astype(np.int16)
    return cast("NDArray[np.int16]", stored + np.int16(codes.zero))


def _packed_outputs(
    codes: IntegerCodes, source: Source, start: int, stop: int, files: SourceFiles
) -> NDArray[np.uint8]:
    """Return columns [start, stop) of a matrix [any, N] whose words hold neighbours along N."""
    per_word = 32 // codes.bits
    first, last = start // per_word, ceil_div(stop, per_word)
    values = _unpacked(read_columns(source, first, last, files), codes.bits)
    if codes.form == "awq":
        by_word = values.reshape(len(values), -1, per_word)
        ordered = np.empty_like(by_word)
        ordered[:, :, list(AWQ_ORDER)] = by_word
        values = ordered.reshape(len(values), -1)
    return values[:, start - first * per_word : stop - first * per_word]


def _unpacked(words: NDArray[np.generic], bits: int) -> NDArray[np.uint8]:
    """Return the codes of i32 words [rows, words], the lowest bits first, u8 [rows, words * 32 / bits]."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    spread = np.ascontiguousarray(words).view(np.uint32)[:, :, None] >> shifts & np.uint32((1 << bits) - 1)
    return spread.reshape(len(words), -1).astype(np.uint8)


def _scales(codes: IntegerCodes, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return scales f32 [stop - start, groups]."""
    if codes.form in ("gptq", "awq"):
        return np.ascontiguousarray(widened(codes.scales, read_columns(codes.scales, start, stop, files)).T)
    return widened(codes.scales, read_rows(codes.scales, start, stop, files)).reshape(stop - start, -1)


def _groups(codes: IntegerCodes) -> int:
    return codes.scales.shape[0] if codes.form in ("gptq", "awq") else (*codes.scales.shape, 1)[1]


def _float8_rows(codes: Float8Codes, start: int, stop: int, files: SourceFiles) -> Floats:
    values: Floats = TYPES[_FORMATS[codes.codes.dtype]].values[_float8(codes, start, stop, files)]
    scale = _spread_scales(codes, start, stop, files)
    values *= _spread(scale, codes.block[1], 0, codes.shape[1], axis=1)
    return values


def _float8(codes: Float8Codes, start: int, stop: int, files: SourceFiles) -> NDArray[np.uint8]:
    """Return codes u8 [stop - start, K]; raises IngestError for those that are no numbers."""
    found = read_rows(codes.codes, start, stop, files).view(np.uint8)
    if (found & np.uint8(0x7F)).max(initial=0) > TYPES[_FORMATS[codes.codes.dtype]].largest_code:
        raise IngestError(
            f"{codes.tensor}: contains NaN or infinity, expected finite values; the checkpoint is damaged: "
            "fetch or save it again"
        )
    return found


def _spread_scales(codes: Float8Codes, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return scales f32 [stop - start, blocks of columns]."""
    height = codes.block[0]
    first, last = start // height, ceil_div(stop, height)
    return _spread(_block_scales(codes, first, last, files), height, start, stop)


def _block_scales(codes: Float8Codes, first: int, last: int, files: SourceFiles) -> Floats:
    """Return rows [first, last) of the scales as f32 [last - first, blocks of columns]."""
    if len(codes.scales.shape) == 2:
        return widened(codes.scales, read_rows(codes.scales, first, last, files))
    count = codes.scales.shape[0] if codes.scales.shape else 1
    flat = replace(codes.scales, shape=(count,))
    return widened(flat, read_rows(flat, first, last, files)).reshape(-1, 1)


def _table_rows(codes: TableCodes, start: int, stop: int, files: SourceFiles) -> Floats:
    columns = codes.shape[1]
    first, last = start * columns, stop * columns
    flat = replace(codes.codes, shape=(codes.codes.size_bytes,))
    packed = read_rows(flat, first // 2, ceil_div(last, 2), files).astype(np.uint8, copy=False)
    pairs = np.stack([packed >> np.uint8(4), packed & np.uint8(15)], axis=1).reshape(-1)
    table = widened(codes.table, read_rows(codes.table, 0, 16, files))
    values = table[pairs[first - first // 2 * 2 :][: last - first]]
    block = first // codes.block
    scale = _table_scales(codes, block, ceil_div(last, codes.block), files)
    found: Floats = (values * _spread(scale, codes.block, first, last)).reshape(stop - start, columns)
    return found


def _table_scales(codes: TableCodes, first: int, last: int, files: SourceFiles) -> Floats:
    raw, nested = read_rows(codes.scales, first, last, files), codes.nested
    if nested is None:
        return widened(codes.scales, raw)
    table = widened(nested.table, read_rows(nested.table, 0, nested.table.shape[0], files))
    block = first // nested.block
    outer = widened(nested.scales, read_rows(nested.scales, block, ceil_div(last, nested.block), files))
    spread = _spread(outer, nested.block, first, last)
    found: Floats = table[raw.astype(np.int64)] * spread + np.float32(nested.offset)
    return found


def _spread(scales: Floats, block: int, start: int, stop: int, axis: int = 0) -> Floats:
    """Return the scale of each position in [start, stop), where `block` share one; `scales` begin with that of
    `start`. Takes no more memory than it returns, however large a block is said to be."""
    edges = np.clip(np.arange(start // block, ceil_div(stop, block) + 1) * block, start, stop)
    return np.repeat(scales, edges[1:] - edges[:-1], axis=axis)
