"""The numbers of a safetensors file's tensors: read, widened and checked."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.sources import Source
from pyc.runtime.errors import IngestError, QuantizeError

Floats = NDArray[np.float32]

_FLOATS = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<u2"}
_NUMPY = {**_FLOATS, "u8": "u1", "i8": "i1", "i32": "<i4", "i64": "<i8", "f8_e4m3": "u1", "f8_e5m2": "u1"}


class NotFiniteError(IngestError):
    """A source holds NaN or infinity."""


def read_rows(source: Source, start: int, stop: int, files: SourceFiles) -> NDArray[np.generic]:
    """Return rows [start, stop) of a source in its own dtype (bf16 as uint16)."""
    if source.dtype not in _NUMPY:
        known = ", ".join(_NUMPY)
        raise IngestError(f"{source.tensor} in {source.path}: dtype {source.dtype}, expected one of {known}")
    dtype = np.dtype(_NUMPY[source.dtype])
    row_bytes = dtype.itemsize * int(np.prod(source.shape[1:], dtype=np.int64))
    buffer = np.empty((stop - start) * row_bytes, np.uint8)
    got = files.read_into(source.path, buffer.data, source.offset + start * row_bytes)
    if got < buffer.size:
        raise IngestError(
            f"{source.tensor}: {source.path} ended at {got} of {buffer.size} bytes of rows [{start}, {stop}); "
            "the file shrank while it was read: fetch it again"
        )
    return buffer.view(dtype).reshape(stop - start, *source.shape[1:])


def read_columns(source: Source, start: int, stop: int, files: SourceFiles) -> NDArray[np.generic]:
    """Return columns [start, stop) of a matrix in its own dtype, [rows, stop - start].

    Raises IngestError as `read_rows` does.
    """
    rows, columns = source.shape
    if (start, stop) == (0, columns):
        return read_rows(source, 0, rows, files)
    dtype = np.dtype(_NUMPY[source.dtype])
    found = np.empty((rows, stop - start), dtype)
    for row in range(rows):
        offset = source.offset + (row * columns + start) * dtype.itemsize
        found[row] = read_rows(replace(source, shape=(1, stop - start), offset=offset), 0, 1, files)
    return found


def widened(source: Source, raw: NDArray[np.generic]) -> Floats:
    """Return raw values as f32; NaN and infinity are errors."""
    if source.dtype not in _FLOATS:
        raise IngestError(f"{source.tensor} in {source.path}: dtype {source.dtype}, expected f64, f32, f16 or bf16")
    require_finite(source, raw)
    if source.dtype != "bf16":
        with np.errstate(over="ignore"):
            values = raw.astype(np.float32)
        if source.dtype == "f64" and not np.isfinite(values).all():
            raise QuantizeError(f"{source.tensor}: a value of {np.abs(raw).max():g} does not fit f32")
        return values
    bits = raw.astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


_EXPONENT = {"bf16": (np.uint16, 0x7F80), "f16": (np.uint16, 0x7C00), "f32": (np.uint32, 0x7F800000)}


def require_finite(source: Source, raw: NDArray[np.generic]) -> None:
    """Raise IngestError, naming the tensor, when raw values hold NaN or infinity (an exponent of all ones)."""
    if source.dtype == "f64":
        damaged = not np.isfinite(raw).all()
    else:
        kind, mask = _EXPONENT[source.dtype]
        bits = raw.view(kind)
        damaged = bool(((bits & kind(mask)) == kind(mask)).any())
    if damaged:
        raise NotFiniteError(
            f"{source.tensor} in {os.path.basename(source.path)}: contains NaN or infinity, expected finite "
            "values; the checkpoint is damaged: fetch or save it again"
        )
