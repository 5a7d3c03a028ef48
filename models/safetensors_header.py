"""Strict pre-parser of safetensors files (https://huggingface.co/docs/safetensors, format section).

    file = header_size u64 little-endian | header JSON | tensor bytes

The reference library takes duplicate names (last wins), names such as "../x" and a header with NaN; nothing
here trusts a number before it was compared with the bytes that are there. No tensor byte is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.weights import Source
from pyc.models.strict_json import MAX_MANY_VALUES, decode
from pyc.runtime.artifact.format import is_plain_name
from pyc.runtime.artifact.kinds import SHORT_BYTES, instead_of_file
from pyc.runtime.errors import IngestError, PycError

MAX_HEADER_BYTES = 32 << 20
"""The reference library takes 100 MB; a header has about 150 bytes a tensor."""

FLOAT_DTYPES = ("f64", "f32", "f16", "bf16")
"""Data types of weights that pyc computes with; others are tolerated as long as nothing uses them."""

_DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("f64", 8),
    "F32": ("f32", 4),
    "F16": ("f16", 2),
    "BF16": ("bf16", 2),
    "I64": ("i64", 8),
    "I32": ("i32", 4),
    "I16": ("i16", 2),
    "I8": ("i8", 1),
    "U64": ("u64", 8),
    "U32": ("u32", 4),
    "U16": ("u16", 2),
    "U8": ("u8", 1),
    "BOOL": ("bool", 1),
    "F8_E4M3": ("f8_e4m3", 1),
    "F8_E5M2": ("f8_e5m2", 1),
}
_Count = Annotated[int, Meta(ge=0, le=1 << 60)]


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[tuple[_Count, ...], Meta(max_length=8)]
    data_offsets: tuple[_Count, _Count]


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One checked file: its tensors by name, in order of offset, and the bytes that they fill."""

    name: str
    path: str
    tensors: Mapping[str, Source]
    tensor_bytes: int


def read_header(
    files: SourceFiles, path: Path, name: str, error: type[PycError] = IngestError
) -> SafetensorsFile:
    """Return the tensors of the file at `path`, opened by `files`; `name` is what messages call it.

    Raises `error`, naming the file, the tensor, got and expected, when anything does not fit.
    """
    try:
        file_bytes = files.size_bytes(str(path))
        prefix = bytearray(SHORT_BYTES)
        got = files.read_into(str(path), memoryview(prefix), 0)
        header_bytes = _header_size(bytes(prefix[:got]), file_bytes, name, error)
        buffer = bytearray(header_bytes)
        got = files.read_into(str(path), memoryview(buffer), 8)
    except OSError as problem:
        raise error(f"{name}: cannot be read: {problem.strerror or problem}") from problem
    if got != header_bytes:
        raise error(f"{name}: truncated: header has {got} bytes, expected {header_bytes}")
    entries, data_start = _entries(buffer, name, error), 8 + header_bytes
    position, tensors = 0, dict[str, Source]()
    for tensor, entry in sorted(entries.items(), key=lambda item: (item[1].data_offsets, item[0])):
        dtype, size_bytes = _checked(tensor, entry, name, error)
        if entry.data_offsets[0] != position:
            fault = (
                "overlaps the tensor before it"
                if entry.data_offsets[0] < position
                else "leaves a gap before it"
            )
            raise error(
                f"{name}: tensor {tensor!r} starts at byte {entry.data_offsets[0]}, expected {position}: "
                f"it {fault}"
            )
        tensors[tensor] = Source(str(path), tensor, dtype, entry.shape, data_start + position, size_bytes)
        position = entry.data_offsets[1]
    if data_start + position != file_bytes:
        state = "truncated" if data_start + position > file_bytes else "bytes after the last tensor"
        raise error(
            f"{name}: {state}: got {file_bytes} bytes, expected {data_start + position}; "
            "download the file again"
        )
    return SafetensorsFile(name, str(path), tensors, position)


def _header_size(prefix: bytes, file_bytes: int, name: str, error: type[PycError]) -> int:
    if len(prefix) < 8:
        raise error(f"{name}: truncated: got {file_bytes} bytes, a safetensors file has at least 8")
    if advice := instead_of_file(prefix):
        raise error(f"{name}: {advice}")
    size = int.from_bytes(prefix[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise error(
            f"{name}: header length {size} is above the limit of {MAX_HEADER_BYTES} bytes; "
            "this is not a safetensors file or it is damaged"
        )
    if size > file_bytes - 8:
        raise error(f"{name}: truncated: got {file_bytes} bytes, the header alone needs {8 + size}")
    if prefix[8:9] != b"{":
        raise error(f"{name}: the header does not start with '{{'; this is not a safetensors file")
    return size


def _entries(header: bytearray, name: str, error: type[PycError]) -> dict[str, _Entry]:
    table = decode(header, dict[str, object], f"{name}: header", error, MAX_MANY_VALUES)
    metadata = table.pop("__metadata__", None)
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise error(f"{name}: __metadata__ is not a table of strings")
    entries = dict[str, _Entry]()
    for tensor, value in table.items():
        if not is_plain_name(tensor):
            raise error(
                f"{name}: the tensor name {tensor!r} is not plain (empty, '..', NUL or a control character)"
            )
        try:
            entries[tensor] = msgspec.convert(value, _Entry)
        except msgspec.ValidationError as problem:
            raise error(f"{name}: tensor {tensor!r}: {problem}") from problem
    return entries


def _checked(tensor: str, entry: _Entry, name: str, error: type[PycError]) -> tuple[str, int]:
    """Return the data type and the size in bytes of one entry, compared with each other."""
    known = _DTYPES.get(entry.dtype)
    if known is None:
        raise error(
            f"{name}: tensor {tensor!r} has the unknown data type {entry.dtype!r} "
            f"(known: {', '.join(_DTYPES)})"
        )
    dtype, itemsize = known
    start, stop = entry.data_offsets
    expected = prod(entry.shape) * itemsize
    if stop < start or stop - start != expected:
        raise error(
            f"{name}: tensor {tensor!r} has data offsets [{start}, {stop}), "
            f"expected {expected} bytes for {entry.dtype} {list(entry.shape)}"
        )
    return dtype, expected
