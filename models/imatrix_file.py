"""Importance matrices as llama.cpp's llama-imatrix writes them: squared inputs of each product, summed over a text.

Two forms, both little-endian. `.dat`: i32 entries; of each i32 length and the name, i32 calls, i32 K, f32 [K] mean
squares times calls; then, in all but the oldest, i32 chunks, i32 length and the name of the text. GGUF, version 2 or 3,
of `general.type` imatrix: tensors f32 NAME.in_sum2 [K], sums of squares, and NAME.counts [1], over how many rows;
others, such as NAME.in_sum, say nothing of squares. Means are what is returned.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

MAGIC = b"GGUF"
MOST_ENTRIES = 65536
MOST_VALUES = 1 << 24
"""Of an entry."""
_MOST_NAME_BYTES = 256
_MOST_TEXT_BYTES = 1 << 20
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_F32 = 0
_SUMS, _COUNTS = ".in_sum2", ".counts"


def read_imatrix(data: bytes) -> dict[str, Floats]:
    """Return mean squares f32 [K] of the inputs of each weight, by llama.cpp's name such as `blk.0.ffn_up.weight`.

    Raises ValueError saying what is wrong.
    """
    found = _gguf(_Cursor(data)) if data[:4] == MAGIC else _legacy(_Cursor(data))
    for name, values in found.items():
        if not np.isfinite(values).all() or values.min() < 0:
            raise ValueError(f"{name}: it has numbers that are negative, infinite or NaN")
    return found


@dataclass
class _Cursor:
    data: bytes
    at: int = 0

    def bytes_of(self, count: int, what: str) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise ValueError(f"it ends within {what}, at byte {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, kind: str, what: str) -> int:
        (found,) = struct.unpack(f"<{kind}", self.bytes_of(struct.calcsize(f"<{kind}"), what))
        return int(found)

    def bounded(self, kind: str, what: str, least: int, most: int) -> int:
        found = self.number(kind, what)
        if not least <= found <= most:
            raise ValueError(f"{what}: got {found}, expected {least} to {most}")
        return found

    def text(self, kind: str, what: str, most: int) -> str:
        data = self.bytes_of(self.bounded(kind, f"length of {what}", 0, most), what)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{what}: not UTF-8") from error

    def name(self, kind: str, what: str, most: int) -> str:
        """Text that messages may show."""
        found = self.text(kind, what, most)
        if not found or not found.isprintable():
            raise ValueError(f"{what}: got {found[:60]!a}, expected letters that can be printed")
        return found


def _legacy(cursor: _Cursor) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    entries = cursor.number("i", "number of entries")
    if not 1 <= entries <= MOST_ENTRIES:
        raise ValueError(
            f"it begins neither as a GGUF nor as a .dat of llama-imatrix (number of entries: got {entries}, expected 1 "
            f"to {MOST_ENTRIES})"
        )
    for index in range(entries):
        name = _new(cursor.name("i", f"name of entry {index}", _MOST_NAME_BYTES), found)
        calls = cursor.bounded("i", f"{name}: calls", 1, 1 << 30)
        count = cursor.bounded("i", f"{name}: numbers", 1, MOST_VALUES)
        found[name] = _numbers(cursor.bytes_of(4 * count, name), 0, count) / np.float32(calls)
    if cursor.at < len(cursor.data):
        cursor.number("i", "number of chunks")
        cursor.text("i", "name of the text", _MOST_TEXT_BYTES)
    if cursor.at < len(cursor.data):
        raise ValueError(f"{len(cursor.data) - cursor.at} bytes are behind its end")
    return found


def _new(name: str, found: Mapping[str, object]) -> str:
    if name in found:
        raise ValueError(f"{name}: the name is there twice")
    return name


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    offset: int


def _gguf(cursor: _Cursor) -> dict[str, Floats]:
    cursor.bytes_of(4, "the magic")
    cursor.bounded("I", "version", 2, 3)
    tensors = cursor.bounded("Q", "number of tensors", 1, 3 * MOST_ENTRIES)
    fields = dict(_field(cursor) for _ in range(cursor.bounded("Q", "number of fields", 0, 4096)))
    kind = fields.get("general.type", "model")
    if kind != "imatrix":
        raise ValueError(f"a GGUF of type {str(kind)[:20]!a}, expected 'imatrix', as llama-imatrix writes it")
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
        raise ValueError(f"general.alignment: got {str(alignment)[:20]}, expected 1 to 65536")
    described: dict[str, _Tensor] = {}
    for index in range(tensors):
        name = _new(cursor.name("Q", f"name of tensor {index}", _MOST_NAME_BYTES + len(_SUMS)), described)
        described[name] = _described(cursor, name)
    start = -(-cursor.at // alignment) * alignment
    found: dict[str, Floats] = {}
    for name, tensor in described.items():
        if name.endswith(_SUMS):
            weight = name.removesuffix(_SUMS)
            if not weight:
                raise ValueError(f"{name}: it names no weight")
            counts = described.get(weight + _COUNTS)
            if counts is None:
                raise ValueError(f"{weight}{_COUNTS}: missing beside {name}")
            found[weight] = _mean(weight, _values(cursor, start, name, tensor), _values(cursor, start, weight, counts))
    if not found:
        raise ValueError(f"it has no tensor *{_SUMS}")
    return found


def _described(cursor: _Cursor, name: str) -> _Tensor:
    rank = cursor.bounded("I", f"{name}: number of dimensions", 1, 4)
    shape = tuple(cursor.bounded("Q", f"{name}: dimension", 1, MOST_VALUES) for _ in range(rank))
    if math.prod(shape) > MOST_VALUES:
        raise ValueError(f"{name}: shape {list(shape)} is too large")
    kind = cursor.number("I", f"{name}: type")
    if kind != _F32 and name.endswith((_SUMS, _COUNTS)):
        raise ValueError(f"{name}: its type is {kind}, expected {_F32}, f32")
    return _Tensor(shape, cursor.number("Q", f"{name}: offset"))


def _values(cursor: _Cursor, start: int, name: str, tensor: _Tensor) -> Floats:
    begin, size_bytes = start + tensor.offset, 4 * math.prod(tensor.shape)
    if begin + size_bytes > len(cursor.data):
        raise ValueError(f"{name}: its {size_bytes} bytes at {begin} end behind the file's {len(cursor.data)}")
    return _numbers(cursor.data, begin, math.prod(tensor.shape))


def _numbers(data: bytes, offset: int, count: int) -> Floats:
    return np.frombuffer(data, "<f4", count, offset).astype(np.float32)


def _mean(weight: str, sums: Floats, counts: Floats) -> Floats:
    if len(counts) != 1:
        raise ValueError(f"{weight}: it has counts of {len(counts)} matrices, expected 1; experts are not read")
    if not counts[0] > 0:
        raise ValueError(f"{weight}: its count is {counts[0]:g}: the text never reached it")
    means: Floats = sums / counts[0]
    return means


def _field(cursor: _Cursor) -> tuple[str, object]:
    name = cursor.name("Q", "name of a field", _MOST_NAME_BYTES)
    return name, _value(cursor, name, cursor.number("I", f"{name}: type"))


def _value(cursor: _Cursor, name: str, kind: int, *, nested: bool = False) -> object:
    if kind in _NUMBERS:
        (found,) = struct.unpack(f"<{_NUMBERS[kind]}", cursor.bytes_of(struct.calcsize(f"<{_NUMBERS[kind]}"), name))
        return found
    if kind == _STRING:
        return cursor.text("Q", name, _MOST_TEXT_BYTES)
    if kind != _ARRAY or nested:
        raise ValueError(f"{name}: its type is {kind}, which GGUF does not have there")
    inner = cursor.number("I", f"{name}: type of its elements")
    return [
        _value(cursor, name, inner, nested=True)
        for _ in range(cursor.bounded("Q", f"{name}: number of elements", 0, 1 << 20))
    ]
