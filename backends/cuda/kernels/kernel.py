"""What an operation becomes on a GPU: launches of kernels over named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

WARP = 32
"""Threads that run together."""
MOST_PARAMETERS = 16
"""Arrays that a kernel takes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel for fixed shapes: every parameter is the address of an array.

    `symbol` stands for all constants: kernels of one name have one `source`, the CUDA C++ of this kernel alone, which
    includes headers of `templates/cuda/include` by their names. Blocks have `threads` threads in one dimension, and
    `shared_bytes` of dynamic shared memory.
    """

    symbol: str
    source: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        assert self.threads % WARP == 0 and 0 < self.threads <= 1024, f"{self.symbol}: {self.threads} threads"
        assert min(self.grid) > 0, f"{self.symbol}: the grid is {self.grid}"


@dataclass(frozen=True, slots=True)
class Step:
    """A launch. `arguments` names the arrays of the kernel's parameters, in their order."""

    kernel: Kernel
    arguments: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.arguments) <= MOST_PARAMETERS, f"{self.kernel.symbol}: {len(self.arguments)} parameters"


@dataclass(frozen=True, slots=True)
class Lowered:
    """The launches of an operation, in order. `scratch` are bytes of memory that they alone use, by name, and `zeroed`
    bytes that are zeros before, and behind. Arrays that launches read `early`, before they wait for others, no other
    launch of a graph writes."""

    steps: tuple[Step, ...]
    scratch: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    zeroed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    early: tuple[str, ...] = ()
