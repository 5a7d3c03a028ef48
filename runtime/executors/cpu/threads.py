"""How many threads a process should compute with: one a core, and no more than its control group lets run.

A core's second hardware thread (SMT) has little left to do: products wait for the memory, or fill the vector units.
That is counted, not measured: no machine with SMT was at hand.

A container with a quota of 4 CPUs on a machine of 64 sees 64 CPUs; 64 threads would use its quota up in a sixteenth of
each period, and stand still for the rest.
"""

import os
from pathlib import Path

from pyc.runtime.host.control_groups import cpu_quota
from pyc.runtime.host.kernel_files import kernel_text


def usable_cpus() -> int:
    """The number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def default_threads(root: Path = Path("/")) -> int:
    """The number of threads to use unless told otherwise; `root` is where /proc and /sys are."""
    cores = {_core(root, cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, int(min(len(cores), cpu_quota(root))))


def _core(root: Path, cpu: int) -> str:
    """A name of the core that has `cpu`."""
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return kernel_text(path) or str(cpu)
