"""Arrays at addresses that compiled code accepts: multiples of 64 bytes (a cache line, an AVX-512
register)."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import ArtifactError

AnyArray = NDArray[np.generic]

ALIGNMENT_BYTES = 64

ScalarT = TypeVar("ScalarT", bound=np.generic)


def aligned_zeros(shape: Sequence[int], dtype: type[ScalarT]) -> NDArray[ScalarT]:
    """A zeroed C-contiguous array of `shape` whose first byte lies on a 64-byte boundary.

    Large arrays come from untouched zero pages: memory is taken only where it is written.
    """
    element = np.dtype(dtype)
    count = 1
    for extent in shape:
        count *= extent
    size_bytes = count * element.itemsize
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(element).reshape(tuple(shape))


def aligned_empty(size_bytes: int) -> NDArray[np.uint8]:
    """An uninitialised buffer `uint8[size_bytes]` that starts on a 64-byte boundary. Raises ArtifactError."""
    try:
        whole = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    except MemoryError as error:
        raise ArtifactError(f"cannot allocate {size_bytes} bytes") from error
    start = -whole.ctypes.data % ALIGNMENT_BYTES
    return whole[start : start + size_bytes]


def is_aligned(array: NDArray[np.generic]) -> bool:
    """Whether `array` is C-contiguous and starts on a 64-byte boundary."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT_BYTES == 0
