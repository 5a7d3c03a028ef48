"""The data types an artifact's tensors may have.

`bf16` has no numpy type in the base install: its arrays are `uint16`, holding the upper half of an IEEE
binary32. All types are little-endian, as the file is.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

DtypeName = Literal["f32", "f16", "bf16", "i32", "u8", "i8"]

AnyArray = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Dtype:
    """A tensor's element type: its name in the header, its size in bytes and the numpy type it is seen as."""

    name: DtypeName
    itemsize: int
    numpy: "np.dtype[np.generic]"


DTYPES: dict[str, Dtype] = {
    "f32": Dtype("f32", 4, np.dtype("<f4")),
    "f16": Dtype("f16", 2, np.dtype("<f2")),
    "bf16": Dtype("bf16", 2, np.dtype("<u2")),
    "i32": Dtype("i32", 4, np.dtype("<i4")),
    "u8": Dtype("u8", 1, np.dtype("u1")),
    "i8": Dtype("i8", 1, np.dtype("i1")),
}
