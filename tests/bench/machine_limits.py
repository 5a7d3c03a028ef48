"""What this machine can do at most: bytes read from memory a second, float and int8 operations a second.

machine_limits.c holds the loops; they are compiled with pyc's own toolchain for the best instruction set here, and
run on 1, 2, ... threads, each bound to a CPU of its own.
"""

import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyc.backends.cpu.isa import Isa, host_isa
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.executors.cpu.features import cpu_features

SOURCE = Path(__file__).with_name("machine_limits.c")
BUFFER_BYTES = 1 << 30
SLICE_ALIGNMENT = 4096
ATTEMPTS = 7
ATTEMPTS_NOW = 3
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


def best_isa() -> Isa:
    """The best instruction set of pyc's that this machine has."""
    isa = host_isa()
    assert isa is not None, "no instruction set is known for this machine"
    return isa


class LimitMeter:
    """The loops, compiled, and the memory they read; zig's files go to `cache`.

    The memory is kept: a virtual machine's kernel may hand what is freed back to its host, for seconds in which
    whatever is measured next is slower (docs/lab/experiments.md).
    """

    def __init__(self, cache: Path, threads: int) -> None:
        isa = best_isa()
        if "amx_int8" in cpu_features():
            isa = replace(isa, zig_cpu=f"{isa.zig_cpu}+amx_tile+amx_int8")
        self._isa, self._threads = isa, threads
        self._library = _compile(cache, isa)
        self._buffer = np.ones(BUFFER_BYTES // 8, dtype=np.uint64)

    def limits(self) -> Limits:
        """The limits for 1 to `threads` threads."""
        counts = range(1, self._threads + 1)
        library = self._library
        return Limits(
            self._isa.name,
            tuple(_read(library, self._buffer, count, ATTEMPTS) for count in counts),
            tuple(_peak(library.pyc_bench_float, FLOAT_ITERATIONS, count, ATTEMPTS) for count in counts),
            self._integers(library.pyc_bench_int8, INT8_ITERATIONS),
            self._integers(library.pyc_bench_amx, AMX_ITERATIONS),
        )

    def now(self) -> dict[str, float | None]:
        """Bytes read and the best int8 operations a second with all threads, in a second: on a shared machine both
        change within minutes, so that shares of them are taken at the time of what reached them."""
        library = self._library
        peaks = ((library.pyc_bench_amx, AMX_ITERATIONS), (library.pyc_bench_int8, INT8_ITERATIONS))
        best = next((peak for peak in peaks if peak[0](1)), None)
        return {
            "read": _read(library, self._buffer, self._threads, ATTEMPTS_NOW),
            "int8": _peak(*best, self._threads, ATTEMPTS_NOW) if best else None,
        }

    def read_once(self, buffer: np.ndarray) -> float:
        """Bytes of `buffer` read a second with all threads, once."""
        return _read(self._library, buffer, self._threads, 1)

    def _integers(self, function: Callable[[int], int], iterations: int) -> tuple[float, ...]:
        """Of 1 to `threads` threads; empty where the CPU lacks the instructions."""
        counts = range(1, self._threads + 1) if function(1) else ()
        return tuple(_peak(function, iterations, count, ATTEMPTS) for count in counts)


def _compile(cache: Path, isa: Isa) -> ctypes.CDLL:
    toolchain = Toolchain(cache)
    binary = toolchain.link_shared(
        [toolchain.compile_object(SOURCE.read_text("utf-8"), isa, {})], isa, "machine_limits.so"
    )
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(binary)
        file.flush()
        library = ctypes.CDLL(file.name)
    for name in ("pyc_bench_read", "pyc_bench_read_in_order"):
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint64
    for name in ("pyc_bench_float", "pyc_bench_int8", "pyc_bench_amx"):
        function = getattr(library, name)
        function.argtypes, function.restype = (ctypes.c_size_t,), ctypes.c_uint64
    return library


def _read(library: ctypes.CDLL, buffer: np.ndarray, threads: int, attempts: int) -> float:
    """Bytes a second, the better of two loops. Every thread reads a slice of its own."""
    size = buffer.nbytes // threads // SLICE_ALIGNMENT * SLICE_ALIGNMENT
    start = -(-buffer.ctypes.data // 64) * 64
    size -= SLICE_ALIGNMENT  # what the alignment of the start takes

    def seconds(loop: Callable[[int, int], int]) -> float:
        return _seconds(lambda index: loop(start + index * size, size), threads)

    loops = (library.pyc_bench_read, library.pyc_bench_read_in_order)
    return max(size * threads / seconds(loop) for _ in range(attempts) for loop in loops)


def _peak(function: Callable[[int], int], iterations: int, threads: int, attempts: int) -> float:
    """Operations a second of all threads."""
    operations = function(iterations)

    def work(_index: int) -> None:
        function(iterations)

    return max(operations * threads / _seconds(work, threads) for _ in range(attempts))


def _seconds(work: Callable[[int], object], threads: int) -> float:
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
