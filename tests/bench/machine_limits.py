"""What this machine can do at most: bytes read from memory a second, float and int8 operations a second.

machine_limits.c holds the loops; they are compiled with pyc's own toolchain for the best instruction set here, and
run on 1, 2, ... threads, each bound to a CPU of its own.
"""

import ctypes
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyc.backends.isa import ISAS, Isa
from pyc.backends.toolchain import Toolchain
from pyc.runtime.cpu import cpu_features

SOURCE = Path(__file__).with_name("machine_limits.c")
BUFFER_BYTES = 1 << 30
SLICE_ALIGNMENT = 4096
ATTEMPTS = 7
FLOAT_ITERATIONS = 5_000_000
INT8_ITERATIONS = 5_000_000
AMX_ITERATIONS = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Best of several attempts; entry n - 1 is that of n threads. Bytes a second, operations a second.

    `isa` is what the loops were compiled for. `int8` and `amx_int8` are empty where the CPU has no such instruction.
    """

    isa: str
    read: tuple[float, ...]
    float32: tuple[float, ...]
    int8: tuple[float, ...]
    amx_int8: tuple[float, ...]

    @property
    def best_int8(self) -> tuple[float, ...]:
        """With AMX where there is AMX."""
        return self.amx_int8 or self.int8


def best_isa() -> Isa:
    """The best instruction set of pyc's that this machine has."""
    machine, features = platform.machine(), cpu_features()
    return max(
        (isa for isa in ISAS.values() if isa.arch == machine and set(isa.features) <= features),
        key=lambda isa: isa.rank,
    )


def measure_limits(cache: Path, threads: int) -> Limits:
    """The limits for 1 to `threads` threads; zig's files go to `cache`."""
    isa = best_isa()
    if "amx_int8" in cpu_features():
        isa = replace(isa, zig_cpu=f"{isa.zig_cpu}+amx_tile+amx_int8")
    library = _compile(cache, isa)
    counts = range(1, threads + 1)
    buffer = np.ones(BUFFER_BYTES // 8, dtype=np.uint64)
    return Limits(
        isa.name,
        tuple(_read(library, buffer, count) for count in counts),
        _peak(library.pyc_bench_float, FLOAT_ITERATIONS, threads),
        _peak(library.pyc_bench_int8, INT8_ITERATIONS, threads),
        _peak(library.pyc_bench_amx, AMX_ITERATIONS, threads),
    )


def _compile(cache: Path, isa: Isa) -> ctypes.CDLL:
    toolchain = Toolchain(cache)
    binary = toolchain.link_shared(
        [toolchain.compile_object(SOURCE.read_text("utf-8"), isa, {})], isa, "machine_limits.so"
    )
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(binary)
        file.flush()
        library = ctypes.CDLL(file.name)
    library.pyc_bench_read.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.pyc_bench_read.restype = ctypes.c_uint64
    for name in ("pyc_bench_float", "pyc_bench_int8", "pyc_bench_amx"):
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.c_size_t,), ctypes.c_uint64
    return library


def _read(library: ctypes.CDLL, buffer: np.ndarray, threads: int) -> float:
    """Bytes a second. Every thread reads a slice of its own."""
    size = buffer.nbytes // threads // SLICE_ALIGNMENT * SLICE_ALIGNMENT
    start = -(-buffer.ctypes.data // 64) * 64
    size -= SLICE_ALIGNMENT  # what the alignment of the start takes

    def work(index: int) -> None:
        library.pyc_bench_read(start + index * size, size)

    return max(size * threads / _seconds(work, threads) for _ in range(ATTEMPTS))


def _peak(function: Callable[[int], int], iterations: int, threads: int) -> tuple[float, ...]:
    """Operations a second of 1 to `threads` threads; empty where the CPU lacks the instructions."""
    if function(1) == 0:
        return ()
    operations = function(iterations)

    def work(_index: int) -> None:
        function(iterations)

    return tuple(
        max(operations * count / _seconds(work, count) for _ in range(ATTEMPTS)) for count in range(1, threads + 1)
    )


def _seconds(work: Callable[[int], None], threads: int) -> float:
    """Seconds from the first start of `work(index)` to its last end; ctypes lets threads run at the same time."""
    cpus = sorted(os.sched_getaffinity(0))
    together = threading.Barrier(threads)
    starts, ends = [0.0] * threads, [0.0] * threads

    def run(index: int) -> None:
        os.sched_setaffinity(0, {cpus[index % len(cpus)]})  # of this thread alone
        together.wait()
        starts[index] = time.perf_counter()
        work(index)
        ends[index] = time.perf_counter()

    workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(ends) - min(starts)
