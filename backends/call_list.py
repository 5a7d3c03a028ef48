"""A function as a list of calls of kernels over tensors, and where its intermediate tensors lie.

Nothing branches and every shape is known but for a cache's blocks, so a function is no more than this;
templates/c/calls.c.j2 runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

ALIGNMENT_BYTES = 64
"""Kernels take tensors that begin at a multiple of it."""

DTYPES = {"float32": (2, 32), "float16": (2, 16), "int32": (0, 32), "uint8": (1, 8)}
"""DLPack's code and bits of each TVM dtype."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """Memory that kernels read and write: its shape and its TVM dtype. Two tensors are never equal."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """How much memory it takes."""
        return prod(self.shape) * DTYPES[self.dtype][1] // 8


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel, which reads `operands`, may write to caches among them, and makes `results`."""

    kernel: str
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


@dataclass(frozen=True)
class CallList:
    """A function called `symbol`: its calls in order. `parameters` and `result` are memory of the caller's."""

    symbol: str
    parameters: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    result: Tensor

    @cached_property
    def offsets(self) -> dict[Tensor, int]:
        """Where intermediate tensors begin in the function's workspace, in bytes.

        Memory is reused after the last call that has a tensor: each takes the lowest gap that is large enough.
        """
        outside = {*self.parameters, self.result}
        last = {tensor: index for index, call in enumerate(self.calls) for tensor in (*call.operands, *call.results)}
        placed: dict[Tensor, int] = {}
        live: dict[Tensor, int] = {}
        for index, call in enumerate(self.calls):
            for tensor in call.results:
                if tensor not in outside:
                    live[tensor] = placed[tensor] = _lowest_gap(live, _aligned(tensor.size_bytes))
            live = {tensor: offset for tensor, offset in live.items() if last[tensor] > index}
        return placed

    @cached_property
    def workspace_bytes(self) -> int:
        """Memory that all intermediate tensors take together."""
        return max((offset + _aligned(tensor.size_bytes) for tensor, offset in self.offsets.items()), default=0)

    def tensors(self) -> Iterator[tuple[Tensor, int]]:
        """Yield every tensor with its offset, those of the caller first: parameters, then the result."""
        for tensor in (*self.parameters, self.result):
            yield tensor, 0
        yield from self.offsets.items()


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _lowest_gap(live: dict[Tensor, int], size_bytes: int) -> int:
    """Return the first offset at which `size_bytes` are free between tensors that are in use."""
    end = 0
    for offset, taken in sorted((offset, _aligned(tensor.size_bytes)) for tensor, offset in live.items()):
        if offset - end >= size_bytes:
            return end
        end = max(end, offset + taken)
    return end
