"""The control groups that this process is in, of version 2 and 1, and what they let it have.

A container of 4 CPUs and 8 GB on a machine of 64 and 512 sees all of these: what it may use is in files of its groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyc.runtime.host.kernel_files import kernel_lines, kernel_text

_NO_LIMIT = float("inf")
_V1_NO_LIMIT = 1 << 62
"""What memory.limit_in_bytes of version 1 says without a limit is a number beyond this."""


def cpu_quota(root: Path = Path("/")) -> float:
    """The CPUs that the process may use at a time: of cpu.max, or cpu.cfs_*; infinite where nothing says it. `root` is
    where /proc and /sys are."""
    return min(map(_quota_of, _groups("cpu", root)), default=_NO_LIMIT)


def memory_limit_bytes(root: Path = Path("/")) -> float:
    """The memory that the process may have: of memory.max, or memory.limit_in_bytes; infinite where nothing says it."""
    return min(map(_memory_of, _groups("memory", root)), default=_NO_LIMIT)


def may_swap(root: Path = Path("/")) -> bool:
    """Whether no group keeps its memory from swap: memory.swap.max of 0, or as much of both together
    (memory.memsw.limit_in_bytes) as of memory."""
    return not any(map(_keeps_from_swap, _groups("memory", root)))


def _keeps_from_swap(group: Path) -> bool:
    both = kernel_text(group / "memory.memsw.limit_in_bytes")
    limit = _memory_of(group)
    is_all = both != "" and limit != _NO_LIMIT and both == kernel_text(group / "memory.limit_in_bytes")
    return is_all or kernel_text(group / "memory.swap.max") == "0"


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the groups that limit a process by `controller`, its own and those above."""
    for line in kernel_lines(root / "proc/self/cgroup"):
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if not name or (controllers and controller not in controllers.split(",")):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        inside = Path(name.lstrip("/"))
        # A container may see itself at the top, or under its name on the host, which is not there.
        for group in (inside, *inside.parents):
            yield top / group


def _quota_of(group: Path) -> float:
    quota, _, period = kernel_text(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = kernel_text(group / "cpu.cfs_quota_us"), kernel_text(group / "cpu.cfs_period_us")
    try:
        used, of = int(quota), int(period)
    except ValueError:  # "max", or no such file
        return _NO_LIMIT
    return used / of if used > 0 and of > 0 else _NO_LIMIT


def _memory_of(group: Path) -> float:
    try:
        limit = int(kernel_text(group / "memory.max") or kernel_text(group / "memory.limit_in_bytes"))
    except ValueError:
        return _NO_LIMIT
    return limit if 0 < limit < _V1_NO_LIMIT else _NO_LIMIT
