"""control_groups.py and machine.py: what a container may have of memory; /proc and /sys are folders made here."""

import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.host import aligned
from pyc.runtime.host.control_groups import cpu_quota, memory_limit_bytes
from pyc.runtime.host.machine import allowed_cpus, memory_bytes, most_memory_bytes, physical_memory_bytes

GB = 1 << 30
UNLIMITED = (1 << 63) - 4096
"""As version 1 says it."""


def tree(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": GB}, GB),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, None),
        (
            {
                "proc/self/cgroup": "0::/pods/one",
                "sys/fs/cgroup/pods/memory.max": 2 * GB,
                "sys/fs/cgroup/pods/one/memory.max": GB,
            },
            GB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": GB,
            },
            GB,
        ),
        ({"proc/self/cgroup": "4:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": (1 << 63) - 4096}, None),
        (
            {
                "proc/self/cgroup": "4:memory:/user",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/memory.memsw.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/user/memory.limit_in_bytes": GB,
                "sys/fs/cgroup/memory/user/memory.memsw.limit_in_bytes": 2 * GB,
            },
            GB,
        ),
        ({"proc/self/cgroup": "0::/a\u2028b\x1cc", "sys/fs/cgroup/a\u2028b\x1cc/memory.max": GB}, GB),
        ({"proc/self/cgroup": "0::/\nnonsense", "sys/fs/cgroup/memory.max": "0"}, None),
        ({}, None),
    ],
    ids=["v2", "no-limit", "both", "v1", "v1-none", "v1-with-swap", "odd-name", "nonsense", "none"],
)
def test_memory_is_what_the_control_group_allows(files, limit, tmp_path):
    root = tree(tmp_path, files)
    expected = physical_memory_bytes() if limit is None else limit
    assert memory_bytes(root) == expected == most_memory_bytes(root)
    assert cpu_quota(root) == float("inf")
    if limit is not None:
        assert memory_limit_bytes(root) == limit
        tree(root, {"proc/swaps": "Filename Type Size Used Priority\n/swap file 1 0 -2"})
        assert most_memory_bytes(root) == float("inf")  # weights may go there
        assert memory_bytes(root) == limit
        for path, text in files.items():
            if path.endswith(("memory.max", "memory.limit_in_bytes")) and text == limit:
                group = path.rpartition("/")[0]
                tree(tmp_path, {f"{group}/memory.swap.max": 0} if path.endswith("max") else {})
                tree(tmp_path, {f"{group}/memory.memsw.limit_in_bytes": text} if path.endswith("bytes") else {})
        assert most_memory_bytes(root) == limit  # no swap for this group


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max", 16), ("400000", 4), ("250000", 3), ("50000", 1), ("9900000", 16)]
)
def test_builds_use_no_more_cpus_than_the_control_group_lets_run(quota, cpus, tmp_path, monkeypatch):
    """Each has memory of its own, whatever the container's is."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    root = tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": f"{quota} 100000"})
    assert allowed_cpus(root) == cpus


def test_weights_that_do_not_fit_are_named_before_they_are_read(monkeypatch):
    """A process that writes to more memory than its group has is killed without a word."""
    monkeypatch.setattr(aligned, "most_memory_bytes", lambda: 1000.0)
    with pytest.raises(RunError, match=r"^weights take 1\.22 kB of memory, and this process may have 1 kB; run it"):
        aligned.aligned_buffers([900, 200])
    assert len(aligned.aligned_buffers([900])) == 1
