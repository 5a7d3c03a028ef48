"""The data types an artifact's tensors may have.

`bf16` has no numpy type in the base install: its arrays are `uint16`, holding the upper half of an IEEE
binary32. All types are little-endian, as the file is. Importing this does not import numpy, so that an artifact can
be opened before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

DtypeName = Literal["f32", "f16", "bf16", "i32", "u8", "i8"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """A tensor's element type: its name in the header, its size in bytes and numpy's code for it."""

    name: DtypeName
    itemsize: int
    code: str

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy type that it is seen as."""
        import numpy as np

        return np.dtype(self.code)


DTYPES: dict[str, Dtype] = {
    "f32": Dtype("f32", 4, "<f4"),
    "f16": Dtype("f16", 2, "<f2"),
    "bf16": Dtype("bf16", 2, "<u2"),
    "i32": Dtype("i32", 4, "<i4"),
    "u8": Dtype("u8", 1, "u1"),
    "i8": Dtype("i8", 1, "i1"),
}
