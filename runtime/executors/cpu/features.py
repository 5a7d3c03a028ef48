"""What this machine's CPU can do, read from /proc/cpuinfo: what the kernel reports there it also supports."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path

from pyc.runtime.artifact.format import Program
from pyc.runtime.errors import RunError
from pyc.runtime.host.kernel_files import kernel_lines
from pyc.runtime.host.signal_handlers import unless_signalled

CPUINFO = Path("/proc/cpuinfo")

_REQUEST_TILES = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)"""

_KIND = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")


def cpu_features() -> frozenset[str]:
    """Return the CPU's feature flags ("flags" on x86, "Features" on aarch64); empty when unknown."""
    fields = _fields()
    return frozenset(fields.get("flags", fields.get("Features", "")).split())


def cpu_model() -> str:
    """Return the CPU's name as the kernel gives it."""
    return _fields().get("model name") or platform.machine()


def cpu_kind() -> str:
    """Return what tells one kind of CPU from others, in words that do not vary between its machines.

    Hypervisors give many kinds one name, so the maker's numbers are in it: "AuthenticAMD 25 17 1".
    """
    fields = _fields()
    return " ".join(fields[key] for key in _KIND if fields.get(key)) or fields.get("model name") or platform.machine()


def cache_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of the second- and third-level caches that this process's CPUs have, all together; 0 when
    unknown. `root` is where /sys is."""
    caches: dict[tuple[str, str], int] = {}
    for cpu in os.sched_getaffinity(0):
        for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
            try:
                level, shared, size, kind = (
                    (index / name).read_text().strip() for name in ("level", "shared_cpu_list", "size", "type")
                )
                if level in ("2", "3") and kind != "Instruction":
                    caches[level, shared] = int(size.removesuffix("K")) << 10
            except unless_signalled(OSError, ValueError):
                continue
    return sum(caches.values())


@lru_cache(maxsize=1)
def _fields() -> dict[str, str]:
    """What /proc/cpuinfo says of the first CPU; nothing where there is no such file."""
    fields: dict[str, str] = {}
    for line in kernel_lines(CPUINFO):
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields


def allow_tiles() -> bool:
    """Ask Linux for the tile registers of AMX, for this process and all its threads; whether it grants them.

    They are kept from programs that do not ask, since they make a thread's saved state 8 KB larger.
    """
    return platform.machine() == "x86_64" and ctypes.CDLL(None).syscall(*_REQUEST_TILES) == 0


def lacking(features: Collection[str]) -> str:
    """Return, in words, what this CPU lacks of the features that code needs; nothing where it runs the code."""
    absent = sorted(set(features) - cpu_features())
    if absent:
        return ", ".join(absent)
    return "tile registers, which the kernel refuses" if "amx_tile" in features and not allow_tiles() else ""


BACKENDS = ("cpu", "tvm")
"""What headers call the CPU's backend; the second is what they said before."""


def choose_program(programs: tuple[Program, ...], isa: str | None) -> Program:
    """Return the first program for CPUs (they are ordered best first) that this CPU can run, or the one called `isa`.

    Raises RunError that says which CPUs the artifact was compiled for.
    """
    machine = platform.machine()
    programs = tuple(program for program in programs if program.backend in BACKENDS)
    listed = ", ".join(f"{program.isa} ({program.arch})" for program in programs) or "none"
    if isa is not None and isa not in {program.isa for program in programs}:
        raise RunError(f"the artifact has no program for {isa!r}; it has: {listed}")
    missing: list[str] = []
    for program in programs:
        if isa is not None and program.isa != isa:
            continue
        needed = _other_machine(program, machine) or lacking(program.features)
        if not needed:
            return program
        missing.append(f"{program.isa} needs {needed}")
    here = f"this CPU ({cpu_model()}, {machine}) cannot run"
    mine = [p for p in programs if p.isa != isa and not _other_machine(p, machine)]
    others = [program.isa for program in mine if not set(program.features) - cpu_features()]
    if isa is not None and others:
        raise RunError(f"{here} the isa that was asked for: {missing[0]}; ask for none, or for {' or '.join(others)}")
    raise RunError(
        f"{here} the artifact: {'; '.join(missing) or 'it has no programs'}; "
        "build with another isa in the recipe's targets: x86-64 runs on every x86_64, armv8 on every aarch64"
    )


def _other_machine(program: Program, machine: str) -> str:
    """What kind of machine the program is for; nothing when it is this one, a CPU under Linux."""
    if (program.device, program.system) != ("cpu", "linux"):
        return f"{program.device} {program.system} {program.arch}"
    return "" if program.arch == machine else program.arch
