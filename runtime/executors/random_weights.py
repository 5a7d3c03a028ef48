"""Random weights in a process's own memory, for executors that run over that."""

from __future__ import annotations

from collections.abc import Iterable

from pyc.runtime.artifact.chunks import shaped
from pyc.runtime.artifact.format import Header
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.executors.protocol import RandomWeights
from pyc.runtime.host.aligned import AnyArray, aligned_buffers


def filled_tensors(header: Header, names: Iterable[str], weights: RandomWeights) -> dict[str, AnyArray]:
    """Return tensors of these names, 64-byte aligned, filled with `weights`. Raises RunError for lack of memory.
    """
    by_name = {tensor.name: tensor for tensor in header.tensors}
    tensors = [by_name[name] for name in names]
    found: dict[str, AnyArray] = {}
    buffers = aligned_buffers([tensor_bytes(tensor.dtype, tensor.shape) for tensor in tensors])
    for tensor, buffer in zip(tensors, buffers, strict=True):
        pattern = weights(tensor)
        for start in range(0, buffer.size, pattern.size):
            part = buffer[start : start + pattern.size]
            part[...] = pattern[: part.size]
        found[tensor.name] = shaped(buffer, tensor)
    return found
