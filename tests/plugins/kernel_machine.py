"""Runs C kernels of an instruction set: natively where the machine has it, under qemu where it emulates it."""

import ctypes
import fcntl
import mmap
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from bare_programs import bare_program
from blake3 import blake3
from long_runs import sample

from pyc.backends.cpu.isa import ISAS, Isa
from pyc.backends.cpu.kernels.linear import AnySpec
from pyc.backends.cpu.kernels.translation_units import FLAGS, headers, unit_source, units_of
from pyc.backends.cpu.toolchain.objects import CachedObjects
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.compiler.files.cache import Cache
from pyc.runtime.executors.cpu.features import allow_tiles, cpu_features
from pyc.runtime.host.cache_folder import cache_directory

EMULATE = {"avx-vnni": "#define PYC_EMULATE_VNNI 1\n", "amx-bf16": "#define PYC_EMULATE_TILES 1\n"}
"""What kernels of an instruction set begin with, to run on a CPU that has all of it but what its name says."""
"""What AVX-VNNI has beside AVX2 is made of operators then (templates/cpu/include/pyc_instructions.h)."""

LARGEST = "amx-bf16" if set(ISAS["amx-bf16"].features) <= cpu_features() and allow_tiles() else "avx512-vnni"
"""With tiles where this CPU has them: its vectors are those of 512 bits, too. What it lacks other tests compile."""
KERNEL_ISAS = sample(ISAS, "x86-64-v3", LARGEST, "armv8-dotprod")
"""Instruction sets of kernels that take long to compile: the others have some of the same instructions, and each run
has whole programs of those that this CPU runs (tests/reference/test_isas.py), and of aarch64 (test_aarch64.py)."""

LIBC = ctypes.CDLL(None, use_errno=True)

# Reads the kernel's index, the counts of pointers, integers and calls, the sizes, the integers, and what each pointer
# points to; writes all of it back. Every call has the part behind that of the one before.
MAIN = """
%(declarations)s
static void *const table[] = {%(table)s};
static char memory[1 << 24] __attribute__((aligned(64)));

typedef int32_t (*pointers2)(void *, void *, int32_t, int32_t, int32_t, int32_t);
typedef int32_t (*pointers3)(void *, void *, void *, int32_t, int32_t, int32_t, int32_t);
typedef int32_t (*pointers4)(void *, void *, void *, void *, int32_t, int32_t, int32_t, int32_t);
typedef int32_t (*pointers6)(void *, void *, void *, void *, void *, void *, int32_t, int32_t, int32_t, int32_t);
typedef int32_t (*pointers7)(void *, void *, void *, void *, void *, void *, void *, int32_t, int32_t, int32_t,
                             int32_t);
typedef int32_t (*pointers9)(void *, void *, void *, void *, void *, void *, void *, void *, void *, int32_t,
                             int32_t, int32_t, int32_t);
void run(void) {
    int32_t head[4], sizes[9], n[4] = {0}; /* a kernel that takes three does not see the last */
    void *p[9];
    char *next = memory;
    transfer(63, 0, head, sizeof head);
    transfer(63, 0, sizes, 4 * head[1]);
    transfer(63, 0, n, 4 * head[2]);
    for (int i = 0; i < head[1]; next += (sizes[i++] + 63) / 64 * 64) transfer(63, 0, p[i] = next, sizes[i]);
    void *f = table[head[0]];
    for (int call = 0; call < head[3]; call++, n[head[2] - 2]++) {
        if (head[1] == 2) ((pointers2)f)(p[0], p[1], n[0], n[1], n[2], n[3]);
        if (head[1] == 3) ((pointers3)f)(p[0], p[1], p[2], n[0], n[1], n[2], n[3]);
        if (head[1] == 4) ((pointers4)f)(p[0], p[1], p[2], p[3], n[0], n[1], n[2], n[3]);
        if (head[1] == 6) ((pointers6)f)(p[0], p[1], p[2], p[3], p[4], p[5], n[0], n[1], n[2], n[3]);
        if (head[1] == 7) ((pointers7)f)(p[0], p[1], p[2], p[3], p[4], p[5], p[6], n[0], n[1], n[2], n[3]);
        if (head[1] == 9) ((pointers9)f)(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], n[0], n[1], n[2], n[3]);
    }
    for (int i = 0; i < head[1]; i++) transfer(64, 1, p[i], sizes[i]);
    system_call(93, 0, 0, 0);
}
"""


class Call(Protocol):
    """Runs a kernel of 2 to 9 pointers and 3 or 4 integers; arrays are written back.

    The last two integers are the part and the parts. `calls` parts are run, from that one on, in the same process: what
    a kernel keeps from part to part is kept.
    """

    def __call__(self, symbol: str, arrays: list[np.ndarray], integers: list[int], calls: int = 1) -> None: ...


@dataclass(frozen=True)
class Machine:
    """Natively an array ends where an unreadable page begins, so that reading past it is a crash."""

    isa: Isa
    call: Call
    emulated: bool


def compile_kernels(specs: tuple[AnySpec, ...], isa: Isa, toolchain: Toolchain) -> tuple[bytes, ...]:
    """The objects of a library for `isa` with the kernels `specs`."""
    return tuple(_compiled_once(unit_source(unit), unit.isa, toolchain) for unit in units_of(specs, isa))


def emulated_kernels(specs: tuple[AnySpec, ...], isa: Isa, cpu: Isa, toolchain: Toolchain) -> tuple[bytes, ...]:
    """The same for a CPU that has `cpu`: in units of its own, what `isa` has more is emulated."""
    sources = ((EMULATE[isa.name] if unit.isa == isa else "") + unit_source(unit) for unit in units_of(specs, isa))
    return tuple(_compiled_once(source, cpu, toolchain) for source in sources)


def _compiled_once(source: str, isa: Isa, toolchain: Toolchain) -> bytes:
    """The object of `source`, once a run: instruction sets share units, and a worker waits for another that compiles
    the same."""
    folder = cache_directory()
    assert folder is not None
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{blake3(f'{isa.name} {source}'.encode()).hexdigest()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return CachedObjects(toolchain, Cache(folder)).compile_object(source, isa, headers(), FLAGS)


def machine_of(isa: Isa, specs: tuple[AnySpec, ...], folder: Path) -> Machine:
    """The machine of an instruction set with the kernels `specs`; skips, once they compile, where there is none.

    A CPU with AVX2 alone runs those for AVX-VNNI with that one instruction emulated.
    """
    toolchain = Toolchain(cache_directory())
    kernels = compile_kernels(specs, isa, toolchain)
    if platform.machine() == isa.arch:
        lacking = set(isa.features) - cpu_features()
        if lacking == {"avx_vnni"}:
            vectors = ISAS["x86-64-v3"]
            kernels = emulated_kernels(specs, isa, vectors, toolchain)
            return Machine(isa, _native(toolchain, vectors, kernels, folder), emulated=False)
        if lacking or ("amx_tile" in isa.features and not allow_tiles()):
            pytest.skip(f"compiled, not run: this CPU lacks {', '.join(sorted(lacking)) or 'tile registers'}")
        return Machine(isa, _native(toolchain, isa, kernels, folder), emulated=False)
    if isa.arch == "aarch64" and shutil.which("qemu-aarch64"):
        return Machine(isa, _emulated(isa, specs, kernels, folder), emulated=True)
    pytest.skip(f"compiled, not run: this machine is not {isa.arch} and qemu-{isa.arch} is not installed")


def _native(toolchain, isa, kernels, folder):
    path = folder / f"{isa.name}.so"
    path.write_bytes(toolchain.link_shared(kernels, isa, path.name))
    library = ctypes.CDLL(str(path))

    def call(symbol, arrays, integers, calls=1):
        copies = [_before_a_guard(array) for array in arrays]
        pointers = [ctypes.c_void_p(copy.ctypes.data) for _, copy in copies]
        *sizes, part, parts = integers
        for at in range(part, part + calls):
            assert getattr(library, symbol)(*pointers, *map(ctypes.c_int32, (*sizes, at, parts))) == 0
        for array, (_, copy) in zip(arrays, copies, strict=True):
            array[...] = copy

    return call


def _before_a_guard(array):
    pages = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    assert LIBC.mprotect(ctypes.c_void_p(whole.ctypes.data + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = whole[pages - array.nbytes : pages].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return memory, copy


def _emulated(isa, specs, kernels, folder):
    symbols = sorted({spec.symbol for spec in specs})
    declarations = "\n".join(f"int32_t {symbol}();" for symbol in symbols)
    main = MAIN % {"declarations": declarations, "table": ", ".join(symbols)}
    path = bare_program(main, {f"kernels-{i}.o": unit for i, unit in enumerate(kernels)}, isa, folder)

    def call(symbol, arrays, integers, calls=1):
        sizes = [array.nbytes for array in arrays]
        head = np.array([symbols.index(symbol), len(arrays), len(integers), calls, *sizes, *integers], np.int32)
        data = head.tobytes() + b"".join(array.tobytes() for array in arrays)
        done = subprocess.run(["qemu-aarch64", path], input=data, capture_output=True, check=True)
        for array, end in zip(arrays, np.cumsum(sizes), strict=True):
            array[...] = np.frombuffer(done.stdout[end - array.nbytes : end], array.dtype).reshape(array.shape)

    return call
