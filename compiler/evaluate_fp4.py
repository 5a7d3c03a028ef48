"""Rows of weights that a checkpoint stores as codes of e2m1, or of -1, 0 and 1 (`compiler.codes`)."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from pyc.compiler.codes import Float4Codes, TernaryCodes
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.fp4 import E2M1, E4M3, LARGEST, exponent_scales
from pyc.compiler.quantization import BLOCK, TILE_ELEMENTS, QuantizedRows
from pyc.compiler.scales import Bytes, Floats
from pyc.compiler.schemes import SCHEMES, LookupGroup
from pyc.compiler.source_values import read_rows, widened
from pyc.compiler.sources import Source
from pyc.runtime.errors import IngestError
from pyc.runtime.host.forks import ForkSafeLock

_NAN = 255


def kept_float4(codes: Float4Codes) -> LookupGroup | None:
    """Return mxfp4 or nvfp4 where its kernels take the inputs; None: a build has to round what the codes stand for."""
    name = {"u8": "mxfp4", "f8_e4m3": "nvfp4"}[codes.scales.dtype]
    scheme = SCHEMES[name]
    assert isinstance(scheme, LookupGroup)
    fits = codes.group == scheme.group_size and codes.shape[1] % BLOCK == 0
    return scheme if fits and (codes.factor is not None) == scheme.has_row_factors else None


def kept_float4_rows(codes: Float4Codes, start: int, stop: int, files: SourceFiles) -> QuantizedRows:
    """Return rows as codes of `kept_float4`: codes and scales as they are, and the factor of the matrix as f32."""
    packed = _nibbles(codes, start, stop, files)
    scale = _float4_scales(codes, start, stop, files)
    if codes.factor is None:
        _require_finite(codes.scales, scale, np.float32(LARGEST))
        return QuantizedRows(packed, scale / np.float32(2), None)
    factor = _number(codes.factor, files)
    with np.errstate(over="ignore"):
        outer = (np.float32(1) / factor if codes.divides else factor) / np.float32(2)
    _require_finite(codes.factor, scale, outer * np.float32(2 * LARGEST))
    return QuantizedRows(packed, scale, None, np.full((stop - start, 1), outer, np.float32))


def float4_rows(codes: Float4Codes, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return the values of rows, f32 [stop - start, K]: the scale by the factor first, as compressed-tensors does."""
    scale = _float4_scales(codes, start, stop, files)
    if codes.factor is not None:
        factor = _number(codes.factor, files)
        with np.errstate(over="ignore"):
            scale = scale / factor if codes.divides else scale * factor
    _require_finite(codes.factor or codes.scales, scale, np.float32(LARGEST))
    values = E2M1.values[_nibbles(codes, start, stop, files)] / np.float32(2)
    values *= np.repeat(scale, codes.group, axis=1)
    return values


def kept_ternary(codes: TernaryCodes) -> LookupGroup | None:
    """Return ternary where its kernels take the inputs."""
    scheme = SCHEMES["ternary"]
    assert isinstance(scheme, LookupGroup)
    return scheme if codes.shape[1] % BLOCK == 0 else None


def kept_ternary_rows(codes: TernaryCodes, start: int, stop: int, files: SourceFiles) -> QuantizedRows:
    """Return rows as codes of ternary, with the scale of the matrix as that of each row."""
    found, scale = _ternary(codes, start, stop, files)
    ones = np.ones((stop - start, codes.shape[1] // BLOCK), np.float32)
    return QuantizedRows(found, ones, None, np.full((stop - start, 1), scale, np.float32))


def ternary_rows(codes: TernaryCodes, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return the values of rows, f32 [stop - start, K]."""
    found, scale = _ternary(codes, start, stop, files)
    values: Floats = (found.astype(np.float32) - np.float32(1)) * scale
    return values


def _nibbles(codes: Float4Codes, start: int, stop: int, files: SourceFiles) -> Bytes:
    packed = read_rows(codes.codes, start, stop, files).view(np.uint8)
    pairs = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
    return pairs.reshape(stop - start, -1)


def _float4_scales(codes: Float4Codes, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return scales f32 [stop - start, groups] without the factor."""
    raw = read_rows(codes.scales, start, stop, files).view(np.uint8)
    is_mx = codes.scales.dtype == "u8"
    if (raw == _NAN if is_mx else np.isnan(E4M3.values[raw])).any():
        raise _not_finite(codes.scales)
    return exponent_scales(raw) * np.float32(2) if is_mx else E4M3.values[raw]


def _ternary(codes: TernaryCodes, start: int, stop: int, files: SourceFiles) -> tuple[Bytes, np.float32]:
    """Return codes u8 [stop - start, K], one more than what they stand for, and the scale."""
    if codes.scale is None:
        weights = widened(codes.codes, read_rows(codes.codes, start, stop, files))
        mean = _mean_magnitude(codes.codes, files)
        inverse = np.float32(1) / mean
        return (np.clip(np.rint(weights * inverse), -1, 1) + 1).astype(np.uint8), np.float32(1) / inverse
    quarter = codes.codes.shape[0]
    found = np.empty((stop - start, codes.shape[1]), np.uint8)
    for place in range(4):
        first, last = max(start, place * quarter), min(stop, (place + 1) * quarter)
        if first < last:
            rows = read_rows(codes.codes, first - place * quarter, last - place * quarter, files).view(np.uint8)
            found[first - start : last - start] = rows >> np.uint8(2 * place) & np.uint8(3)
    if found.max(initial=0) > 2:
        raise IngestError(f"{codes.tensor}: contains the code 3, expected 0, 1 and 2; the checkpoint is damaged")
    scale = _number(codes.scale, files)
    with np.errstate(over="ignore"):
        scale = np.float32(1) / scale if codes.divides else scale
    _require_finite(codes.scale, scale, np.float32(1))
    return found, scale


_MEANS: WeakKeyDictionary[SourceFiles, dict[Source, np.float32]] = WeakKeyDictionary()
_MEANS_LOCK = ForkSafeLock()


def _mean_magnitude(source: Source, files: SourceFiles) -> np.float32:
    """Return the mean of |w| over a matrix, which is read once; at least 1e-5, as transformers has it."""
    with _MEANS_LOCK.lock:
        known = _MEANS.setdefault(files, {})
        if source not in known:
            rows, columns = source.shape
            step = max(1, 32 * TILE_ELEMENTS // max(columns, 1))
            total = 0.0
            for at in range(0, rows, step):
                part = widened(source, read_rows(source, at, min(at + step, rows), files))
                total += float(np.abs(part).sum(dtype=np.float64))
            known[source] = np.float32(max(total / max(rows * columns, 1), 1e-5))
        return known[source]


def _number(source: Source, files: SourceFiles) -> np.float32:
    flat = replace(source, shape=(1,))
    found = np.float32(widened(flat, read_rows(flat, 0, 1, files))[0])
    if not found:
        raise IngestError(f"{source.tensor}: is 0, expected a scale; the checkpoint is damaged")
    return found


def _require_finite(source: Source, scale: Floats | np.float32, factor: np.float32) -> None:
    """Raise IngestError where the largest magnitude that a code stands for, the scale by `factor`, is beyond f32."""
    with np.errstate(over="ignore", invalid="ignore"):
        most = np.abs(scale).max(initial=0) * np.abs(factor)
    if not np.isfinite(most):
        raise IngestError(
            f"{source.tensor}: a scale makes values beyond f32 (3.4e38), expected finite weights; the checkpoint is "
            "damaged: fetch or save it again"
        )


def _not_finite(source: Source) -> IngestError:
    return IngestError(
        f"{source.tensor}: contains NaN, expected finite scales; the checkpoint is damaged: fetch or save it again"
    )
