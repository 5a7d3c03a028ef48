"""What a benchmark ran on, and how much memory it took."""

import math
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path

from pyc.runtime.host.control_groups import cpu_quota, may_swap, memory_limit_bytes
from pyc.runtime.host.kernel_files import kernel_lines

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Machine:
    """`cpu` is the model's name, `cores` those this process may use, `kernel` the operating system's."""

    cpu: str
    arch: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str


def describe_machine() -> Machine:
    """The machine this process runs on."""
    return Machine(
        cpu=_cpu_model(),
        arch=platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def allowed_cpus(root: Path = Path("/")) -> int:
    """The CPUs that this process can use at a time: those that it may run on, or what its control groups' quota allows.
    `root` is where /proc and /sys are."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), cpu_quota(root))))


def memory_bytes(root: Path = Path("/")) -> int:
    """The memory that this process can have: the machine's, or what its control groups allow. `root` is where /proc and
    /sys are."""
    return int(min(physical_memory_bytes(), memory_limit_bytes(root)))


def physical_memory_bytes() -> int:
    """The machine's memory, whatever this process may have of it."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def most_memory_bytes(root: Path = Path("/")) -> float:
    """The memory that this process can have and write to; infinite where it may have swap, whose use nobody knows."""
    swaps = kernel_lines(root / "proc/swaps")[1:]
    return float("inf") if swaps and may_swap(root) else memory_bytes(root)


def peak_rss_bytes() -> int:
    """The most physical memory this process has had, mapped file pages included.

    Of its own: what getrusage says begins with the memory of the process that started this one.
    """
    for line in kernel_lines(STATUS):
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu_model() -> str:
    for line in kernel_lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "CPU part"):
            return value.strip()
    return platform.processor() or "unknown"
