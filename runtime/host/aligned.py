"""Arrays at addresses that compiled code accepts: multiples of 64 bytes (a cache line, an AVX-512
register)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.host.machine import most_memory_bytes
from pyc.runtime.host.rounding import round_up
from pyc.runtime.host.sizes import human_bytes

AnyArray = NDArray[np.generic]

ALIGNMENT_BYTES = 64

_MAPPED = (
    "run it from a file (pyc pull), built with artifact.codec none and loaded without --no-mmap: weights are mapped "
    "then, in memory that the kernel may have back"
)

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


def aligned_buffers(sizes_bytes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Uninitialised buffers of these sizes for weights, one behind the other, each on a 64-byte boundary.

    They are one allocation, as numpy asks the system for huge pages where that is large. Raises RunError where they do
    not fit into memory: the kernel would end the process without a word.
    """
    ends = list(accumulate(round_up(size, ALIGNMENT_BYTES) for size in sizes_bytes))
    total = ends[-1] if ends else 0
    most, taken = most_memory_bytes(), f"weights take {human_bytes(total)} of memory"
    if total > most:
        raise RunError(f"{taken}, and this process may have {human_bytes(int(most))}; {_MAPPED}")
    try:
        whole = np.empty(total + ALIGNMENT_BYTES, dtype=np.uint8)
    except MemoryError as error:
        raise RunError(f"{taken}, which the system does not grant; {_MAPPED}") from error
    first = -whole.ctypes.data % ALIGNMENT_BYTES
    starts = [first, *(first + end for end in ends[:-1])]
    return [whole[start : start + size] for start, size in zip(starts, sizes_bytes, strict=False)]


def is_aligned(array: NDArray[np.generic]) -> bool:
    """Whether `array` is C-contiguous and starts on a 64-byte boundary."""
    return bool(array.flags.c_contiguous) and array.ctypes.data % ALIGNMENT_BYTES == 0
