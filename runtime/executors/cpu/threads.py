"""How many threads a process should compute with: one a core, and no more than its control group lets run.

A core's second hardware thread (SMT) has little left to do: products wait for the memory, or fill the vector units.
That is counted, not measured: no machine with SMT was at hand.

A container with a quota of 4 CPUs on a machine of 64 sees 64 CPUs; 64 threads would use its quota up in a sixteenth of
each period, and stand still for the rest.
"""

import os
from pathlib import Path


def usable_cpus() -> int:
    """The number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def default_threads(root: Path = Path("/")) -> int:
    """The number of threads to use unless told otherwise; `root` is where /proc and /sys are."""
    cores = {_core(root, cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, int(min(len(cores), _quota(root))))


def _core(root: Path, cpu: int) -> str:
    """A name of the core that has `cpu`."""
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return _read(path) or str(cpu)


def _quota(root: Path) -> float:
    """CPUs that the control group and those above it may use at a time, of version 2 (cpu.max) and 1 (cpu.cfs_*)."""
    least = float("inf")
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        inside = Path(name.lstrip("/"))
        # A container may see itself at the top, or under its name on the host, which is not there.
        for group in (inside, *inside.parents):
            least = min(least, _quota_of(top / group))
    return least


def _quota_of(group: Path) -> float:
    quota, _, period = _read(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    try:
        used, of = int(quota), int(period)
    except ValueError:  # "max", or no such file
        return float("inf")
    return used / of if used > 0 and of > 0 else float("inf")


def _read(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes()).strip()  # the names of groups are those of folders
    except OSError:
        return ""
