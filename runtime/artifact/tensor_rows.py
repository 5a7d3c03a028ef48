"""A tensor of an artifact by rows, for who looks at one piece after the other: memory is that of a piece and a chunk.

`Artifact.tensor` makes all of it, and of an artifact that nobody signed a few stored bytes may stand for any number.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from pyc.runtime.artifact.chunks import Wanted, chunks_of
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Tensor
from pyc.runtime.artifact.reader import Artifact

if TYPE_CHECKING:
    import numpy as np

    from pyc.runtime.host.aligned import AnyArray


class TensorRows:
    """A tensor as an array, of which `rows[start:stop]` are read, verified and decoded when they are asked for.

    A chunk that the rows end in is kept for the next ones, so that in order each is decoded once.
    """

    def __init__(self, artifact: Artifact, tensor: Tensor, *, is_flat: bool = False) -> None:
        """`is_flat`: a row is one number."""
        self.dtype: np.dtype[np.generic] = DTYPES[tensor.dtype].numpy
        self.shape: tuple[int, ...] = (math.prod(tensor.shape),) if is_flat else tuple(tensor.shape)
        self._artifact = artifact
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self._chunks = chunks_of(tensor)
        sizes = (artifact.header.chunks[number].raw_bytes for number in self._chunks)
        self._ends = tuple(accumulate(sizes))
        self._held: tuple[int, memoryview] | None = None

    def __getitem__(self, rows: slice) -> AnyArray:
        """Return rows [start, stop). Raises ArtifactError for damaged bytes."""
        import numpy as np

        start, stop, step = rows.indices(self.shape[0])
        assert step == 1, rows
        first, last = start * self._row_bytes, max(start, stop) * self._row_bytes
        buffer = np.empty(last - first, np.uint8)
        wanted: list[Wanted] = []
        parts: list[tuple[int, memoryview]] = []
        held = self._held
        index = bisect_right(self._ends, first)
        begin = self._ends[index - 1] if index else 0
        while begin < last:
            number, end = self._chunks[index], self._ends[index]
            is_held = held is not None and held[0] == number
            if first <= begin and end <= last and not is_held:
                wanted.append(Wanted(number, buffer.data[begin - first : end - first]))
            else:
                if held is None or not is_held:
                    held = number, memoryview(bytearray(end - begin))
                    wanted.append(Wanted(*held))
                parts.append((begin, held[1]))
            index, begin = index + 1, end
        self._artifact.read_chunks(wanted)
        self._held = held  # which is verified now
        for begin, data in parts:
            low, high = max(begin, first), min(begin + len(data), last)
            buffer.data[low - first : high - first] = data[low - begin : high - begin]
        return buffer.view(self.dtype).reshape(max(start, stop) - start, *self.shape[1:])
