"""threads.py: cores, not hardware threads, and a container's quota; /proc and /sys are folders made here."""

import os

import pytest

from pyc.runtime.executors.cpu.threads import default_threads, usable_cpus


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A root folder; `add(path, text)` makes a file of it, `cpus(n, siblings)` the CPUs of the process."""

    class Machine:
        root = tmp_path

        def add(self, path, text):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")

        def cpus(self, numbers, siblings=None):
            monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(numbers))
            for number in numbers if siblings else ():
                self.add(f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", siblings(number))

    return Machine()


def test_two_hardware_threads_of_a_core_count_once(machine):
    machine.cpus(range(8), lambda cpu: f"{cpu % 4},{cpu % 4 + 4}")
    assert default_threads(machine.root) == 4
    assert usable_cpus() == 8


def test_one_of_two_hardware_threads_may_be_used(machine):
    machine.cpus([0, 1, 4], lambda cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}")
    assert default_threads(machine.root) == 2


def test_without_a_topology_every_cpu_is_a_core(machine):
    machine.cpus(range(3))
    assert default_threads(machine.root) == 3


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 16),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "9900000 100000"}, 16),
        ({"proc/self/cgroup": "0::/pods/one", "sys/fs/cgroup/pods/cpu.max": "300000 100000"}, 3),
        (
            {
                "proc/self/cgroup": "0::/pods/one",
                "sys/fs/cgroup/pods/cpu.max": "300000 100000",
                "sys/fs/cgroup/pods/one/cpu.max": "200000 100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n3:cpuset:/x\n0::/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "600000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            6,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            16,
        ),
        ({}, 16),
    ],
    ids=["v2", "half-a-cpu", "less-than-one", "no-limit", "more-than-cpus", "parent", "both", "v1", "v1-none", "none"],
)
def test_a_quota_limits_them(machine, files, threads):
    machine.cpus(range(16))
    for path, text in files.items():
        machine.add(path, text)
    assert default_threads(machine.root) == threads


def test_a_group_may_have_any_name(machine):
    machine.cpus(range(16))
    group = machine.root / "sys/fs/cgroup" / os.fsdecode(b"Gr\xfc\xdfe")
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("300000 100000\n")
    machine.add("proc/self/cgroup", "")
    (machine.root / "proc/self/cgroup").write_bytes(b"0::/Gr\xfc\xdfe\n")
    assert default_threads(machine.root) == 3


def test_this_machine():
    allowed = os.sched_getaffinity(0)
    assert 1 <= default_threads() <= usable_cpus() == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert default_threads() == usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("name", ["a\u2028b", "a\x85b", "a\x1cb", "a:b", "a\udce8", "a\u3000", "a\rb", "a "])
def test_a_group_is_called_as_somebody_liked(machine, name):
    machine.cpus(range(16))
    for path, text in (("proc/self/cgroup", f"0::/{name}"), (f"sys/fs/cgroup/{name}/cpu.max", "300000 100000")):
        (machine.root / path).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / path).write_bytes(os.fsencode(f"{text}\n"))
    assert default_threads(machine.root) == 3


@pytest.mark.parametrize("text", ["garbage", "0:", "", ":::"])
def test_what_names_no_group(machine, text):
    machine.cpus(range(4))
    machine.add("proc/self/cgroup", text)
    assert default_threads(machine.root) == 4
