"""Which chunks a tensor or a blob lies in, and where their bytes go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Blob, Header, Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyc.runtime.host.aligned import AnyArray


@dataclass(frozen=True, slots=True)
class Wanted:
    """A chunk to verify, by its number, and where its decoded bytes go, if anywhere."""

    number: int
    target: memoryview | None = None


def chunks_of(record: Tensor | Blob) -> range:
    """The numbers of the chunks that hold a tensor or a blob."""
    first = record.span.first_chunk
    return range(first, first + record.span.chunk_count)


def wanted_into(header: Header, record: Tensor | Blob, buffer: memoryview) -> list[Wanted]:
    """The chunks of a tensor or a blob, each with its place in `buffer`."""
    wanted = []
    done = 0
    for number in chunks_of(record):
        size = header.chunks[number].raw_bytes
        wanted.append(Wanted(number, buffer[done : done + size]))
        done += size
    return wanted


def shaped(buffer: NDArray[np.uint8], tensor: Tensor) -> AnyArray:
    """A tensor's bytes as an array that is not written to."""
    array = buffer.view(DTYPES[tensor.dtype].numpy).reshape(tensor.shape)
    array.flags.writeable = False
    return array
