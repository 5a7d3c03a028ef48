"""The bytes of initializers: what TensorRT reads, made of the tensors that an artifact has for ONNX.

TensorRT takes codes that are signed, scales that are greater than zero, and no zero points. Codes and scales of ours
are not so: symmetric int4 has scales of both signs. With q the code, d the scale and z the zero point (8 of symmetric
int4), and ~q for -1 - q:

    d (q - z) = |d| c + b,    c = q - 8 and b = d (8 - z)    where d > 0,
                              c = ~(q - 8) and b = -d        where d < 0 (symmetric alone)

`b` is the offset of a block: what it adds to a product is `b` times the sum of the block's inputs. A block whose scale
is 0 has codes of 0 and a scale of 1. All of that is exact.

| form | tensors | what it is |
|---|---|---|
| stored | a tensor | its values, in the initializer's dtype and shape; a row of it |
| int4-codes | codes, scales | c, i4 [N, K], two in a byte, the first the lower |
| int4-scales | scales | abs d, f32 [N, blocks] |
| int4-offsets | scales, zero points? | b, f32 [N, blocks] |
| int8-codes | codes | q - 128, i8 [N, K]: without the padding of the last block |
| int8-scales | scales | d, f32 [N]: all blocks of a row have the same |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.tensorrt.program import Initializer

Array = NDArray[np.generic]
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "i32": 32, "i64": 64, "u8": 8, "i8": 8, "i4": 4, "e4m3": 8, "bool": 8}


def contents(initializer: Initializer, tensors: Mapping[str, Array]) -> NDArray[np.uint8]:
    """Return the bytes of an initializer; `tensors` are those of the artifact, bf16 as u16. Raises ArtifactError."""
    make = FORMS.get(initializer.form)
    if make is None:
        raise ArtifactError(
            f"{initializer.name}: this pyc does not know the form {initializer.form!r}; install a newer pyc"
        )
    try:
        made = make(initializer, [tensors[name] for name in initializer.tensors])
        found = np.ascontiguousarray(made).reshape(-1).view(np.uint8)
    except (IndexError, TypeError, ValueError) as error:
        raise _misshapen(initializer, tensors) from error
    if found.nbytes != -(-prod(initializer.shape) * _BITS[initializer.dtype] // 8):
        raise _misshapen(initializer, tensors)
    return found


def _misshapen(initializer: Initializer, tensors: Mapping[str, Array]) -> ArtifactError:
    found = ", ".join(str(list(tensors[name].shape)) for name in initializer.tensors)
    return ArtifactError(f"{initializer.tensors[0]}: it is {found}, the graph expects {list(initializer.shape)}")


def _stored(initializer: Initializer, tensors: Sequence[Array]) -> Array:
    (array,) = tensors
    if initializer.row is not None:
        array = array[initializer.row]
    if initializer.dtype != "f32" or array.dtype == np.float32:
        return array
    if array.dtype == np.uint16:  # bf16
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32)


def _int4_codes(initializer: Initializer, tensors: Sequence[Array]) -> Array:
    codes, scales = tensors[0].view(np.uint8), tensors[1].astype(np.float32, copy=False)[..., None]
    signed = codes ^ np.where(scales < 0, np.uint8(0x77), np.uint8(0x88))
    return np.where(scales == 0, np.uint8(0), signed)


def _int4_scales(initializer: Initializer, tensors: Sequence[Array]) -> Array:
    return _positive(np.abs(tensors[0].astype(np.float32, copy=False)))


def _int4_offsets(initializer: Initializer, tensors: Sequence[Array]) -> Array:
    scales = tensors[0].astype(np.float32, copy=False)
    if len(tensors) == 1:
        return np.where(scales < 0, -scales, np.float32(0))
    points = tensors[1].view(np.uint8)
    both = np.stack([points & np.uint8(15), points >> np.uint8(4)], axis=2).reshape(len(points), -1)
    offsets: NDArray[np.float32] = scales * (np.float32(8) - both[:, : scales.shape[1]].astype(np.float32))
    return offsets


def _int8_codes(initializer: Initializer, tensors: Sequence[Array]) -> Array:
    codes = tensors[0].view(np.uint8).reshape(len(tensors[0]), -1)[:, : initializer.shape[1]]
    return codes ^ np.uint8(0x80)


def _int8_scales(initializer: Initializer, tensors: Sequence[Array]) -> Array:
    return _positive(tensors[0][:, 0].astype(np.float32, copy=False))


def _positive(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(scales == 0, np.float32(1), scales)


FORMS: Mapping[str, Callable[[Initializer, Sequence[Array]], Array]] = {
    "stored": _stored,
    "int4-codes": _int4_codes,
    "int4-scales": _int4_scales,
    "int4-offsets": _int4_offsets,
    "int8-codes": _int8_codes,
    "int8-scales": _int8_scales,
}
