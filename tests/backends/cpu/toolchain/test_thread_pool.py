"""templates/cpu/thread_pool.c: every task of every loop once, whatever the threads do, in a library of its own."""

import ctypes
import os
import platform
import subprocess
import sys
import time
from _ctypes import dlclose

import pytest
from kernel_threads import become, kernel_threads

from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.toolchain.thread_pool import HEADER, compile_thread_pool
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.executors.cpu.prefetch import ZEN4, Distance, Distances
from pyc.runtime.host.cache_folder import cache_directory
from pyc.templates.rendering import source_text

TASKS = 64

# What a program's library has of this, and loops whose tasks note that they were done. `costly` tasks take long.
HARNESS = """
#include <stdint.h>
#include <string.h>
#include "pyc_prefetch_distances.h"
const struct pyc_prefetch_distances *distances(void) { return &pyc_prefetch_distances; }
struct group { void *sync; int32_t tasks; };
typedef int (*task)(int, struct group *, void *);
int (*__TVMBackendParallelLaunch)(task, void *, int);
int64_t pyc_start(int64_t threads);
int32_t pyc_prefetch_next(const uint8_t *weights, int64_t bytes);

struct loop { int64_t *marks; const uint64_t *costs; int failing; };
static int note(int index, struct group *group, void *data) {
    const struct loop *loop = data;
    for (int i = index; i < 64; i += group->tasks) {
        for (volatile uint64_t n = loop->costs ? loop->costs[i] : 0; n; n--) {}
        loop->marks[i]++;
    }
    return index == loop->failing ? -1 : 0;
}
static const uint8_t *weights[2];
static int64_t weight_bytes[2];
void read_ahead(int which, const uint8_t *from, int64_t bytes) {
    weights[which] = from;
    weight_bytes[which] = bytes;
}
int loops(int64_t count, int64_t *marks, const uint64_t *costs, int failing) {
    struct loop loop = {marks, costs, failing};
    for (int64_t i = 0; i < count; i++) {
        if (weights[i % 2]) pyc_prefetch_next(weights[i % 2], weight_bytes[i % 2]);
        if (__TVMBackendParallelLaunch(note, &loop, 0)) return -1;
        for (int task = 0; task < 64; task++)
            if (marks[task] != i + 1) return 1; /* a task that was not done when its loop was over, or done twice */
    }
    return 0;
}
"""


def library(folder, arch):
    toolchain = Toolchain(cache_directory())
    isa = next(isa for isa in ISAS.values() if isa.arch == arch)
    harness = toolchain.compile_object(HARNESS, isa, {HEADER: source_text(f"cpu/include/{HEADER}")})
    objects = [harness, compile_thread_pool(arch, toolchain)]
    path = folder / f"team-{arch}.so"
    path.write_bytes(toolchain.link_shared(objects, isa, path.name))
    return path


@pytest.fixture
def team(tmp_path):
    loaded = ctypes.CDLL(str(library(tmp_path, platform.machine())))
    loaded.pyc_start.argtypes, loaded.pyc_start.restype = [ctypes.c_int64], ctypes.c_int64
    yield loaded
    loaded.pyc_start(1)


def loops(team, count, costs=None, failing=-1):
    marks = (ctypes.c_int64 * TASKS)()
    given = (ctypes.c_uint64 * TASKS)(*costs) if costs else None
    return team.loops(ctypes.c_int64(count), marks, given, failing), list(marks)


def test_distances_are_those_of_all_objects_of_a_library(team):
    """Kernels read them, in an object of their own."""
    team.distances.restype = ctypes.POINTER(ctypes.c_int32 * len(ZEN4.as_c()))
    assert list(team.distances().contents) == list(ZEN4.as_c())
    other = Distances(Distance(1, 2, False), Distance(3, 4, True), Distance(5, 6, False))
    team.pyc_set_distances(other.as_c())
    assert list(team.distances().contents) == list(other.as_c())


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 64])
def test_every_task_of_every_loop_is_done_once(team, threads):
    assert team.pyc_start(threads) == threads
    count = 20_000 if threads <= len(os.sched_getaffinity(0)) else 300  # threads without a CPU wait for one
    assert loops(team, count) == (0, [count] * TASKS)


@pytest.mark.parametrize("costly", [range(1), range(32), range(60, 64)], ids=str)
def test_work_that_is_not_even(team, costly):
    team.pyc_start(4)
    costs = [200_000 if task in costly else 0 for task in range(TASKS)]
    assert loops(team, 30, costs) == (0, [30] * TASKS)


def test_threads_that_sleep_wake_up(team):
    team.pyc_start(3)
    for _ in range(20):
        assert loops(team, 5) == (0, [5] * TASKS)
        time.sleep(0.05)


def test_threads_sleep_when_there_is_nothing_to_do(team):
    team.pyc_start(2)
    loops(team, 100)
    time.sleep(0.3)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before <= 0.05


def test_a_task_that_fails_fails_its_loop_and_no_other(team):
    team.pyc_start(2)
    assert loops(team, 1, failing=63) == (-1, [1] * TASKS)
    assert loops(team, 1, failing=0) == (-1, [1] * TASKS)
    assert loops(team, 10) == (0, [10] * TASKS)


def test_a_team_starts_again_with_another_size(team):
    for threads in (2, 5, 1, 3, 3):
        assert team.pyc_start(threads) == threads
        assert loops(team, 50) == (0, [50] * TASKS)


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (-3, 1), (1000, 64)])
def test_sizes_that_are_not_to_be_had(team, asked, given):
    assert team.pyc_start(asked) == given
    assert loops(team, 5) == (0, [5] * TASKS)


def test_a_library_is_unloaded_with_its_threads(tmp_path):
    loaded = ctypes.CDLL(str(library(tmp_path, platform.machine())))
    others = len(kernel_threads())
    loaded.pyc_start(ctypes.c_int64(4))
    assert become(others + 3) == others + 3
    dlclose(loaded._handle)
    assert become(others) == others


def exit_status(folder, script):
    """Of a process that has started a `team` of 3 and then runs `script`."""
    path = library(folder, platform.machine())
    imports = f"import ctypes, os, threading, time; team = ctypes.CDLL({str(path)!r})\n"
    start = f"{imports}team.pyc_start(ctypes.c_int64(3))\n"
    return subprocess.run([sys.executable, "-c", start + script], check=False, timeout=60).returncode


def test_threads_read_of_the_weights_to_come_and_nothing_else(tmp_path):
    """Two matmuls in turn, a large and a small one, each with pages behind it that nobody may read."""
    script = """
import mmap
libc = ctypes.CDLL(None)
kept = []
for which, pages in enumerate((512, 2)):
    memory = mmap.mmap(-1, (pages + 1024) * 4096)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    guard = ctypes.c_void_p(start + pages * 4096)
    assert libc.mprotect(guard, ctypes.c_size_t(1024 * 4096), 0) == 0
    kept.append((memory, start))
    team.read_ahead(which, ctypes.c_void_p(start + 100 * which), ctypes.c_int64(pages * 4096 - 100 * which))
marks = (ctypes.c_int64 * 64)()
for _ in range(10):
    ctypes.memset(marks, 0, 512)
    assert team.loops(ctypes.c_int64(40_000), marks, None, -1) == 0
    time.sleep(0.001)
team.pyc_stop()
resident = (ctypes.c_ubyte * 512)()
assert libc.mincore(ctypes.c_void_p(kept[0][1]), ctypes.c_size_t(512 * 4096), resident) == 0
assert any(resident), "nothing was read ahead"
os._exit(0)
"""
    assert exit_status(tmp_path, script) == 0


def test_threads_that_were_stopped_are_missed_by_nobody(team):
    others = len(kernel_threads())
    team.pyc_start(3)
    assert loops(team, 20) == (0, [20] * TASKS)
    assert become(others + 2) == others + 2
    team.pyc_stop()
    assert become(others) == others
    team.pyc_stop()
    assert loops(team, 20) == (0, [20] * TASKS)
    assert team.pyc_start(2) == 2
    assert loops(team, 20) == (0, [20] * TASKS)


def test_a_forked_process_works_alone_and_ends(tmp_path):
    """The threads stay with the parent: the child does every task itself, and does not wait for them when it exits."""
    script = """
def loops():
    marks = (ctypes.c_int64 * 64)()
    assert team.loops(ctypes.c_int64(10), marks, None, -1) == 0
    assert list(marks) == [10] * 64
loops()
child = os.fork()
loops()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert exit_status(tmp_path, script) == 0


def test_signals_go_to_the_process_s_own_threads(team):
    before = set(os.listdir("/proc/self/task"))
    team.pyc_start(3)
    added = set(os.listdir("/proc/self/task")) - before
    assert len(added) == 2
    for task in added:
        with open(f"/proc/self/task/{task}/status") as file:
            (blocked,) = [int(line.split()[1], 16) for line in file if line.startswith("SigBlk")]
        assert blocked >> 1 & 1, "SIGINT"
        assert blocked >> 14 & 1, "SIGTERM"


def test_it_compiles_for_every_architecture(tmp_path):
    for arch in sorted({isa.arch for isa in ISAS.values()}):
        assert library(tmp_path, arch).stat().st_size > 0


def test_a_process_exits_while_a_caller_is_in_a_loop(tmp_path):
    script = """
marks, costs = (ctypes.c_int64 * 64)(), (ctypes.c_uint64 * 64)(*[20_000] * 64)
threading.Thread(target=team.loops, args=(ctypes.c_int64(10**6), marks, costs, -1), daemon=True).start()
time.sleep(0.2)
assert marks[63] > 0
"""
    assert [exit_status(tmp_path, script) for _ in range(3)] == [0, 0, 0]
