"""The GPUs that programs are compiled for: names as NVIDIA's compilers have them, and the limits of a multiprocessor.

A cubin for sm_XY runs on GPUs of compute capability X.Y and later ones X.Z; one for sm_XYa on X.Y alone. PTX runs on
X.Y and on all later GPUs, for which the driver compiles it. `compute_100` is the PTX for GPUs that have no cubin of
their own: every GPU since 10.0 takes it, which is not true of 12.0, and kernels use nothing that came later. GPUs
between 8.0 and 9.0 take a cubin of those.

Limits are those of the CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability". Registers
are given to warps by 256, shared memory to blocks by 128 bytes and 1024 that the system keeps of each.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from pyc.runtime.errors import LowerError
from pyc.runtime.executors.cuda.choice import Span, device_features

MOST_REGISTERS = 255
"""Registers that a thread can have."""


@dataclass(frozen=True, slots=True)
class Arch:
    """A kind of GPU. `is_exact`: a program for it runs on no other compute capability.

    Of a multiprocessor: 32-bit `registers`, `shared_bytes`, resident `threads` and `blocks`; `shared_bytes_of_block` is
    the most dynamic and static shared memory that one block can have.
    """

    name: str
    compute_capability: tuple[int, int]
    shared_bytes_of_block: int
    shared_bytes: int
    threads: int
    blocks: int
    registers: int = 65536
    is_exact: bool = False
    has_warpgroups: bool = False
    """Whether warpgroups have matrix instructions (wgmma)."""

    @property
    def is_ptx(self) -> bool:
        """Whether a program is PTX, which the driver compiles when it loads it."""
        return self.name.startswith("compute_")

    @property
    def features(self) -> tuple[str, ...]:
        """What a program for it needs of a device, as `runtime.executors.cuda.choice` reads it."""
        span: Span = "ptx" if self.is_ptx else "only" if self.is_exact else "family"
        return device_features(*self.compute_capability, span)


def _kib(size: int) -> int:
    return size << 10


ARCHS: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("sm_80", (8, 0), _kib(163), _kib(164), 2048, 32),
        Arch("sm_89", (8, 9), _kib(99), _kib(100), 1536, 24),
        Arch("sm_90a", (9, 0), _kib(227), _kib(228), 2048, 32, is_exact=True, has_warpgroups=True),
        Arch("sm_100a", (10, 0), _kib(227), _kib(228), 2048, 32, is_exact=True),
        Arch("compute_100", (10, 0), _kib(99), _kib(100), 1536, 24),  # the least of those that take it
        Arch("sm_120", (12, 0), _kib(99), _kib(100), 1536, 24),
    )
}
"""Every kind of GPU by its name, older ones first."""


def find_arch(name: str) -> Arch:
    """Return the kind of GPU called `name`; raises LowerError with the nearest name when there is none."""
    arch = ARCHS.get(name)
    if arch is None:
        near = difflib.get_close_matches(name, ARCHS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise LowerError(f"unknown GPU architecture {name!r}{hint} (known: {', '.join(ARCHS)})")
    return arch
