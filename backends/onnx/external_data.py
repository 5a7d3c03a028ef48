"""Writes a model's weights into one file beside it, each 4096-aligned, and notes in the model where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray

from pyc.backends.onnx.layouts import float4_codes
from pyc.backends.onnx.writer import Reference

ALIGNMENT = 4096
"""A page: who maps the file maps each weight."""


def write_external_data(
    model: onnx.ModelProto,
    references: Iterable[Reference],
    read: Callable[[str], NDArray[np.generic]],
    file: BinaryIO,
    name: str,
) -> None:
    """Write the weights to `file`, which the model then calls `name`; `read` returns a tensor of the artifact."""
    initializers = {initializer.name: initializer for initializer in model.graph.initializer}
    offset = 0
    places: dict[tuple[object, ...], tuple[int, int]] = {}
    for reference in references:
        key = _bytes_of(reference)
        if key in places:
            _point(initializers[reference.name], name, *places[key])
            continue
        data = contents(read(reference.tensor), reference)
        padding = -offset % ALIGNMENT
        file.write(bytes(padding))
        file.write(data.data)
        offset += padding
        places[key] = offset, data.nbytes
        _point(initializers[reference.name], name, offset, data.nbytes)
        offset += data.nbytes


def _bytes_of(reference: Reference) -> tuple[object, ...]:
    """Return what the bytes of an initializer follow from: floating point of 8 bits is the codes as they lie."""
    dtype = "u8" if reference.dtype in ("e4m3", "e5m2") else reference.dtype
    return reference.tensor, dtype, reference.row, reference.shape if dtype == "u4" else (), reference.factor


def _point(initializer: onnx.TensorProto, name: str, offset: int, size_bytes: int) -> None:
    del initializer.external_data[:]
    for key, value in (("location", name), ("offset", offset), ("length", size_bytes)):
        initializer.external_data.add(key=key, value=str(value))


def contents(array: NDArray[np.generic], reference: Reference) -> NDArray[np.uint8]:
    """Return the bytes of an initializer: those of the artifact's tensor, widened, signed or packed anew if it asks."""
    if reference.row is not None:
        array = array[reference.row]
    match reference.dtype:
        case "f32" if array.dtype == np.uint16:  # bf16
            array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "f32":
            numbers: NDArray[np.float32] = array.astype(np.float32, copy=False)
            array = numbers if reference.factor == 1 else numbers * np.float32(reference.factor)
        case "e2m1":
            array = float4_codes(array)
        case "i8" if array.dtype == np.uint8:
            array = array.view(np.uint8) ^ np.uint8(0x80)
        case "i4":
            array = array.view(np.uint8) ^ np.uint8(0x88)
        case "u4":
            array = _packed(array, reference.shape)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _packed(rows: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return elements of four bits without the padding that rows of an odd number of them have."""
    array = rows.astype(np.uint8, copy=False).reshape(shape[0], -1)
    if shape[-1] % 2 == 0:
        return array
    halves = np.stack([array & np.uint8(15), array >> np.uint8(4)], axis=2).reshape(shape[0], -1)[:, : shape[-1]]
    flat = halves.reshape(-1)
    flat = np.pad(flat, (0, flat.size % 2))
    packed: NDArray[np.uint8] = flat[0::2] | flat[1::2] << np.uint8(4)
    return packed
