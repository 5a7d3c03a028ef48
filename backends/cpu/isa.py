"""The instruction sets that CPU kernels are compiled for.

`features` are what a CPU must report for the code to run: flags of /proc/cpuinfo on x86, HWCAP names (which
/proc/cpuinfo lists too) on aarch64. Among the variants that a CPU can run, the highest `rank` is the fastest.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Literal

from pyc.runtime.errors import LowerError
from pyc.runtime.executors.cpu.features import cpu_features

GLIBC = "2.17"
"""The oldest glibc that compiled libraries run on (the floor of manylinux2014)."""

GemmStrategy = Literal["simd", "scale_folded", "amx"]
"""How a library does the GEMM of many rows: by SIMD as it does few, with scales folded into codes
(templates/cpu/include/pyc_linear_folded.h), or by AMX (pyc_linear_amx.h)."""


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: how zig's clang and TVM's LLVM are told of it, and what it needs of the CPU.

    LLVM hears only of what TIR kernels gain from, so that instruction sets which differ in matmuls and attention alone
    share its code.
    """

    name: str
    arch: str
    zig_target: str
    zig_cpu: str
    llvm_triple: str
    llvm_cpu: str
    llvm_attributes: tuple[str, ...]
    features: tuple[str, ...]
    rank: int
    integer_matmuls_of: str = ""
    """The instruction set whose code for integer matmuls by SIMD is the same, if another's is."""
    rest_of: str = ""
    """The same for all other kernels, attention over int8 aside."""

    @property
    def gemm_strategy(self) -> GemmStrategy:
        """How GEMMs of many rows are done."""
        if self.has_amx:
            return "amx"
        return "scale_folded" if "avx512_vnni" in self.features else "simd"

    @property
    def has_amx(self) -> bool:
        """Whether matmuls and attention of many tokens are done by AMX."""
        return "amx_tile" in self.features


_X86_TARGET = f"x86_64-linux-gnu.{GLIBC}"
_X86_TRIPLE = "x86_64-unknown-linux-gnu"
_ARM_TARGET = f"aarch64-linux-gnu.{GLIBC}"
_ARM_TRIPLE = "aarch64-unknown-linux-gnu"
_V3_FEATURES = ("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe")
_AVX512_FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni")

ISAS: dict[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa("x86-64", "x86_64", _X86_TARGET, "x86_64", _X86_TRIPLE, "x86-64", (), (), 0),
        Isa("x86-64-v3", "x86_64", _X86_TARGET, "x86_64_v3", _X86_TRIPLE, "x86-64-v3", (), _V3_FEATURES, 1),
        Isa(
            "avx-vnni",
            "x86_64",
            _X86_TARGET,
            "x86_64_v3+avxvnni",
            _X86_TRIPLE,
            "x86-64-v3",
            (),
            (*_V3_FEATURES, "avx_vnni"),
            2,
            rest_of="x86-64-v3",
        ),
        Isa(
            "avx512-vnni",
            "x86_64",
            _X86_TARGET,
            "x86_64_v4+avx512vnni",
            _X86_TRIPLE,
            "x86-64-v4",
            ("+avx512vnni",),
            (*_V3_FEATURES, *_AVX512_FEATURES),
            3,
        ),
        Isa(
            "avx512-bf16",
            "x86_64",
            _X86_TARGET,
            "x86_64_v4+avx512vnni+avx512bf16",
            _X86_TRIPLE,
            "x86-64-v4",
            ("+avx512vnni",),
            (*_V3_FEATURES, *_AVX512_FEATURES, "avx512_bf16"),
            4,
            integer_matmuls_of="avx512-vnni",
        ),
        Isa(
            "amx-bf16",
            "x86_64",
            _X86_TARGET,
            "x86_64_v4+avx512vnni+avx512bf16+avx512fp16+amx_tile+amx_bf16",
            _X86_TRIPLE,
            "x86-64-v4",
            ("+avx512vnni",),
            (*_V3_FEATURES, *_AVX512_FEATURES, "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16"),
            5,
            integer_matmuls_of="avx512-vnni",  # which fold scales for more rows than are multiplied by SIMD here
        ),
        Isa("armv8", "aarch64", _ARM_TARGET, "generic", _ARM_TRIPLE, "generic", (), ("asimd",), 0),
        Isa(
            "armv8-dotprod",
            "aarch64",
            _ARM_TARGET,
            "generic+v8_2a+dotprod",
            _ARM_TRIPLE,
            "generic",
            ("+v8.2a", "+dotprod"),
            ("asimd", "asimddp"),
            1,
        ),
    )
}
"""Every instruction set by name."""


def find_isa(name: str) -> Isa:
    """Return the instruction set called `name`; raises LowerError that lists the known ones."""
    if name not in ISAS:
        raise LowerError(f"unknown instruction set {name!r}; known: {', '.join(ISAS)}")
    return ISAS[name]


def oldest_isa(arch: str) -> Isa:
    """Return the instruction set that every CPU of `arch` has."""
    return min((isa for isa in ISAS.values() if isa.arch == arch), key=lambda isa: isa.rank)


def host_isa() -> Isa | None:
    """Return the best instruction set of this machine, or None."""
    machine, features = platform.machine(), cpu_features()
    runs = [isa for isa in ISAS.values() if isa.arch == machine and set(isa.features) <= features]
    return max(runs, key=lambda isa: isa.rank, default=None)
