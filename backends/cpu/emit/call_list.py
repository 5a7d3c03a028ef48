"""A function as a list of calls of kernels over tensors, and where its intermediate tensors lie.

Nothing branches and every shape is known but for a cache's blocks, so a function is no more than this;
templates/cpu/calls.c.j2 runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from pyc.runtime.host.made_once import made_once
from pyc.runtime.host.rounding import round_up

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

    @made_once
    def offsets(self) -> dict[Tensor, int]:
        """Where intermediate tensors begin in the function's workspace, in bytes.

        Memory is reused after the last call that has a tensor, by tensors of the same shape and dtype: a thread then
        writes to rows that it wrote before. Where another thread's rows were, each line would have to come from that
        thread's cache first.
        """
        outside = {*self.parameters, self.result}
        last = {tensor: index for index, call in enumerate(self.calls) for tensor in (*call.operands, *call.results)}
        placed: dict[Tensor, int] = {}
        free: defaultdict[tuple[tuple[int, ...], str], list[int]] = defaultdict(list)
        end = 0
        for index, call in enumerate(self.calls):
            for tensor in call.results:
                places = free[tensor.shape, tensor.dtype]
                if tensor in outside:
                    continue
                if not places:
                    places.append(end)
                    end += round_up(tensor.size_bytes, ALIGNMENT_BYTES)
                placed[tensor] = places.pop()
            for tensor in dict.fromkeys((*call.operands, *call.results)):
                if tensor in placed and last[tensor] == index:
                    free[tensor.shape, tensor.dtype].append(placed[tensor])
        return placed

    @made_once
    def workspace_bytes(self) -> int:
        """Memory that all intermediate tensors take together."""
        ends = (offset + round_up(tensor.size_bytes, ALIGNMENT_BYTES) for tensor, offset in self.offsets.items())
        return max(ends, default=0)

    def tensors(self) -> Iterator[tuple[Tensor, int]]:
        """Yield every tensor with its offset, those of the caller first: parameters, then the result."""
        for tensor in (*self.parameters, self.result):
            yield tensor, 0
        yield from self.offsets.items()
