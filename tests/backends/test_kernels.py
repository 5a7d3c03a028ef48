"""The C kernels against float64 numpy, on every instruction set that this machine runs or emulates."""

import ctypes
import mmap
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pyc.backends.isa import ISAS, Isa
from pyc.backends.kernels import KernelSpec, QuantizeSpec, compile_kernels
from pyc.backends.toolchain import Toolchain
from pyc.compiler.cache import cache_directory
from pyc.compiler.layouts import activation_layout, pack_rows, panel_layout, unpack_rows
from pyc.compiler.quantization import QuantizedRows, store_rows
from pyc.compiler.schemes import (
    SCHEMES,
    Activations,
    ActivationScales,
    Int4Group,
    Int8Channel,
    Int8Group,
    Scheme,
    parse_scheme,
)
from pyc.runtime.cpu import allow_tiles

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

UNIT = 2.0**-24
"""Unit roundoff of f32."""

INT4 = [name for name in SCHEMES if name.startswith("int4")]
UNPUBLISHED = {"int8-g64": 64, "int8-g128": 128}
"""Group sizes that the kernels take and no scheme of a recipe uses."""

TOKENS = 19

SCALES: tuple[ActivationScales, ...] = ("exact", "binary")
ZERO = {"exact": 128, "binary": 8}
"""What a record's starts are the negative multiple of."""


class Case(NamedTuple):
    """A product: N and K are no multiples of anything where the scheme allows it."""

    scheme: str
    activations: str
    outputs: int
    inputs: int
    bias: bool

    @property
    def spec(self) -> KernelSpec:
        activations: Activations = "f32" if self.activations == "f32" else "int8"
        group = UNPUBLISHED.get(self.scheme)
        scheme = parse_scheme(self.scheme, activations) if group is None else Int8Group(group, activations)
        return KernelSpec("linear", self.outputs, self.inputs, scheme, self.bias)

    def __str__(self) -> str:
        return "-".join(map(str, self))


LINEAR = [
    *[Case(name, "f32", 45, 77, True) for name in ("f32", "f16", "bf16")],
    *[Case(name, "f32", 7, 1, False) for name in ("f32", "bf16")],
    *[Case("int8", kind, 45, 77, True) for kind in ("int8", "f32")],
    *[Case("int8", kind, 3, 5, False) for kind in ("int8", "f32")],
    *[Case("int8-g32", kind, 45, 77, True) for kind in ("int8", "f32")],
    *[Case("int8-g32", kind, 3, 5, False) for kind in ("int8", "f32")],
    *[Case("int8-g32", kind, 45, 384, kind == "int8") for kind in ("int8", "f32")],
    Case("int8-g32", "int8", 3, 16416, False),  # a header too large to copy
    *[Case("int8-g64", kind, 45, 384, False) for kind in ("int8", "f32")],
    *[Case("int8-g128", kind, 18, 254, False) for kind in ("int8", "f32")],
    *[Case(name, kind, 45, 384, kind == "f32") for name in INT4 for kind in ("int8", "f32")],
    Case("int4-g32", "int8", 5, 32, True),
]
EXTREME = [Case(name, "int8", 18, 256, False) for name in ("int8", "int8-g32", "int4-g32-asym")]
EMBEDDING = [
    *[(name, 45, 77) for name in ("f32", "f16", "bf16", "int8", "int8-g32")],
    *[(name, 45, 256) for name in INT4],
]
WIDTHS = sorted({case.inputs for case in LINEAR + EXTREME})
SPECS = (
    *[case.spec for case in LINEAR + EXTREME],
    *[KernelSpec("embedding", outputs, inputs, SCHEMES[name]) for name, outputs, inputs in EMBEDDING],
    *[QuantizeSpec(inputs, scales) for inputs in WIDTHS for scales in SCALES],
)

# Reads the kernel's index, the counts of integers and pointers, the integers, the sizes, and what each pointer
# points to; the last one is the output, and is written back. Without a C library: building one for another
# architecture takes a minute.
EMULATED_MAIN = """
#include <stddef.h>
#include <stdint.h>
%(declarations)s
typedef int32_t (*product)(void *, void *, void *, int32_t, int32_t, int32_t, int32_t);
typedef int32_t (*product_bias)(void *, void *, void *, void *, int32_t, int32_t, int32_t, int32_t);
typedef int32_t (*quantize)(void *, void *, int32_t, int32_t);
typedef int32_t (*embedding)(void *, void *, void *, int32_t);
static void *const table[] = {%(table)s};
static char memory[1 << 24] __attribute__((aligned(64)));

static long system_call(long number, long a, long b, long c) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
static void leave(int status) { system_call(93, status, 0, 0); }
static void transfer(int number, int file, void *bytes, long size) {
    for (long done = 0, part; done < size; done += part) {
        part = system_call(number, file, (long)bytes + done, size - done);
        if (part <= 0) leave(2);
    }
}
void *memset(void *to, int value, size_t size) {
    for (volatile char *p = to; size; size--) *p++ = value;
    return to;
}
void *memcpy(void *to, const void *from, size_t size) {
    const char *q = from;
    for (volatile char *p = to; size; size--) *p++ = *q++;
    return to;
}
void _start(void) {
    int32_t head[3], n[4], sizes[4];
    void *p[4];
    char *next = memory;
    transfer(63, 0, head, sizeof head);
    transfer(63, 0, n, 4 * head[1]);
    transfer(63, 0, sizes, 4 * head[2]);
    for (int i = 0; i < head[2]; next += (sizes[i++] + 63) / 64 * 64) transfer(63, 0, p[i] = next, sizes[i]);
    void *f = table[head[0]];
    if (head[2] == 4) ((product_bias)f)(p[0], p[1], p[2], p[3], n[0], n[1], n[2], n[3]);
    else if (head[1] == 4) ((product)f)(p[0], p[1], p[2], n[0], n[1], n[2], n[3]);
    else if (head[1] == 2) ((quantize)f)(p[0], p[1], n[0], n[1]);
    else ((embedding)f)(p[0], p[1], p[2], n[0]);
    transfer(64, 1, p[head[2] - 1], sizes[head[2] - 1]);
    leave(0);
}
"""


@dataclass(frozen=True)
class Runner:
    """Runs a symbol with arrays (the last is the output) and integers; `call` returns the output's bytes."""

    call: Callable[[str, list[Array], list[int]], Bytes]
    token_counts: tuple[int, ...]

    def quantize(
        self, x: Floats, scales: ActivationScales
    ) -> tuple[Bytes, Floats, NDArray[np.int32], NDArray[np.int8]]:
        """Return the records of x [m, K], and their scales, starts and values."""
        rows, inputs = x.shape
        layout = activation_layout(inputs)
        out = np.full((rows, layout.row_bytes), 0xAA, np.uint8)
        records = self.call(QuantizeSpec(inputs, scales).symbol, [x, out], [0, rows]).reshape(rows, -1)
        return (
            records,
            layout.scales.view(records).astype(np.float32),
            layout.starts.view(records).astype(np.int32),
            layout.data.view(records).astype(np.int8),
        )

    def product(
        self,
        spec: KernelSpec,
        x: Array,
        w: Bytes,
        bias: Floats,
        panels: tuple[int, int],
        tokens: tuple[int, int] | None = None,
    ) -> Floats:
        """Return y [m, N]; what was not written is NaN."""
        y = np.full((x.shape[0], spec.outputs), np.nan, np.float32)
        arrays = [x, w, *([bias] if spec.has_bias else []), y]
        return self.call(spec.symbol, arrays, [*(tokens or (0, x.shape[0])), *panels]).view(np.float32).reshape(y.shape)


LIBC = ctypes.CDLL(None, use_errno=True)


def before_a_guard(array: Array) -> tuple[mmap.mmap, Array]:
    """Return a copy whose end is the end of a page that an unreadable page follows."""
    pages = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    assert LIBC.mprotect(ctypes.c_void_p(whole.ctypes.data + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = whole[pages - array.nbytes : pages].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return memory, copy


def native(toolchain: Toolchain, isa: Isa, folder: Path) -> Runner:
    path = folder / f"{isa.name}.so"
    path.write_bytes(toolchain.link_shared([compile_kernels(SPECS, isa, toolchain)], isa, path.name))
    library = ctypes.CDLL(str(path))

    def call(symbol: str, arrays: list[Array], integers: list[int]) -> Bytes:
        held = [before_a_guard(array) for array in arrays]
        pointers = [ctypes.c_void_p(copy.ctypes.data) for _, copy in held]
        assert getattr(library, symbol)(*pointers, *[ctypes.c_int32(value) for value in integers]) == 0
        return np.frombuffer(held[-1][1].tobytes(), np.uint8)

    return Runner(call, (1, 2, 3, 4, 5, 6, 7, 8, 9))


def emulated(toolchain: Toolchain, isa: Isa, folder: Path) -> Runner:
    symbols = sorted({spec.symbol for spec in SPECS})
    declarations = "\n".join(f"int32_t {symbol}();" for symbol in symbols)
    (folder / "main.c").write_text(EMULATED_MAIN % {"declarations": declarations, "table": ", ".join(symbols)})
    (folder / "kernels.o").write_bytes(compile_kernels(SPECS, isa, toolchain))
    zig = [sys.executable, "-m", "ziglang"]
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(toolchain.zig_cache), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    flags = ["-target", isa.zig_target, "-O1", "-fno-builtin", "-fno-sanitize=all", "-w"]
    subprocess.run([*zig, "cc", *flags, "-c", "main.c", "-o", "main.o"], cwd=folder, check=True, env=caches)
    subprocess.run([*zig, "ld.lld", "main.o", "kernels.o", "-o", "main"], cwd=folder, check=True, env=caches)

    def call(symbol: str, arrays: list[Array], integers: list[int]) -> Bytes:
        header = [symbols.index(symbol), len(integers), len(arrays), *integers, *[a.nbytes for a in arrays]]
        data = np.array(header, np.int32).tobytes() + b"".join(array.tobytes() for array in arrays)
        done = subprocess.run(["qemu-aarch64", folder / "main"], input=data, capture_output=True, check=True)
        return np.frombuffer(done.stdout, np.uint8)

    return Runner(call, (1, 7))  # a process each


@pytest.fixture(scope="module", params=list(ISAS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    isa = ISAS[request.param]
    toolchain = Toolchain(cache_directory())
    folder = tmp_path_factory.mktemp(isa.name)
    if platform.machine() == isa.arch:
        lacking = set(isa.features) - set(Path("/proc/cpuinfo").read_text().split())
        if lacking or ("amx_tile" in isa.features and not allow_tiles()):
            compile_kernels(SPECS, isa, toolchain)
            pytest.skip(f"compiled, not run: this machine lacks {', '.join(sorted(lacking)) or 'tile registers'}")
        return native(toolchain, isa, folder)
    if isa.arch == "aarch64" and shutil.which("qemu-aarch64"):
        return emulated(toolchain, isa, folder)
    compile_kernels(SPECS, isa, toolchain)  # it must compile anywhere
    pytest.skip(f"compiled, not run: this machine is not {isa.arch} and qemu-{isa.arch} is not installed")


def weights(scheme: Scheme, outputs: int, inputs: int) -> tuple[Bytes, Doubles]:
    """Random panels and the weights [N, K] that they stand for."""
    rng = np.random.default_rng([outputs, inputs])
    rows = rng.standard_normal((outputs, inputs)) * np.exp2(rng.integers(-3, 3, (outputs, 1)))
    layout = panel_layout(scheme, inputs)
    panels = pack_rows(store_rows(rows.astype(np.float32), scheme), layout)
    return panels, unpack_rows(panels, layout, outputs).astype(np.float64)


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_linear_agrees_with_float64(run: Runner, case: Case) -> None:
    spec = case.spec
    assert spec.scheme is not None
    rng = np.random.default_rng(5)
    x = rng.standard_normal((TOKENS, spec.inputs)).astype(np.float32)
    bias = rng.standard_normal(spec.outputs).astype(np.float32)
    panels, w = weights(spec.scheme, spec.outputs, spec.inputs)
    given: Array = x
    values = x.astype(np.float64)
    if spec.reads:
        given, scale, _, data = run.quantize(x, spec.reads.scales)
        blocks = data.reshape(TOKENS, -1, 32) * scale.astype(np.float64)[:, :, None]
        values = blocks.reshape(TOKENS, -1)[:, : spec.inputs]
    every = (0, panels.shape[0])
    y = run.product(spec, given, panels, bias, every)
    reference = values @ w.T + (bias if spec.has_bias else 0)
    # Recursive summation of n terms errs by at most n unit roundoffs of the sum of magnitudes (Higham, Accuracy
    # and Stability, 4.2); 8 more for scales, bias, and products where there is no fused multiply-add. Integer
    # kernels sum exactly within a block: they have fewer terms.
    magnitudes = np.abs(values) @ np.abs(w.T) + np.abs(bias)
    bound = (spec.inputs + 8) * UNIT * magnitudes
    assert (np.abs(y - reference) <= bound).all()

    for count in run.token_counts:
        np.testing.assert_array_equal(run.product(spec, given[:count], panels, bias, every), y[:count])
        last = given[TOKENS - count :]
        np.testing.assert_array_equal(run.product(spec, last, panels, bias, every), y[TOKENS - count :])
    for panel in range(panels.shape[0]):
        rows = np.arange(spec.outputs) // 16 == panel
        piece = run.product(spec, given, panels, bias, (panel, panel + 1))
        np.testing.assert_array_equal(piece[:, rows], y[:, rows])
        assert np.isnan(piece[:, ~rows]).all()
    chunk = run.product(spec, given, panels, bias, every, (3, 14))
    np.testing.assert_array_equal(chunk[3:14], y[3:14])
    assert np.isnan(chunk[:3]).all()
    assert np.isnan(chunk[14:]).all()


@pytest.mark.parametrize("case", EXTREME, ids=str)
def test_extreme_codes_do_not_overflow(run: Runner, case: Case) -> None:
    spec = case.spec
    assert spec.scheme is not None
    rng = np.random.default_rng(6)
    layout = panel_layout(spec.scheme, spec.inputs)
    ends = (0, 15) if isinstance(spec.scheme, Int4Group) else (1, 255)
    codes = rng.choice(np.array(ends, np.uint8), (spec.outputs, spec.inputs))
    codes[0], codes[1] = ends
    x = rng.choice(np.array([-127, 127], np.float32), (6, spec.inputs))
    x[0], x[1] = -127, 127
    x[2], x[3] = np.where(codes[2] == ends[0], -127, 127), np.where(codes[2] == ends[0], 127, -127)
    if isinstance(spec.scheme, Int8Channel):
        stored = QuantizedRows(codes, np.ones((spec.outputs, 1), np.float32), None)
        signed = codes.astype(np.int64) - 128
    elif isinstance(spec.scheme, Int8Group):
        stored = QuantizedRows(codes, np.ones((spec.outputs, spec.inputs // 32), np.float16), None)
        signed = codes.astype(np.int64) - 128
    else:
        groups = spec.inputs // 32
        zero = rng.choice(np.array([0, 15], np.uint8), (spec.outputs, groups))
        stored = QuantizedRows(codes, np.ones((spec.outputs, groups), np.float16), zero)
        signed = codes.astype(np.int64) - np.repeat(zero.astype(np.int64), 32, axis=1)
    panels = pack_rows(stored, layout)
    assert spec.reads is not None
    records, _, _, data = run.quantize(x, spec.reads.scales)
    np.testing.assert_array_equal(data, x)
    y = run.product(spec, records, panels, np.empty(0, np.float32), (0, panels.shape[0]))
    # All scales are 1 and every partial sum is an integer below 2^24, so f32 is exact.
    np.testing.assert_array_equal(y, x.astype(np.int64) @ signed.T)


def quantize_reference(x: Floats, scales: ActivationScales) -> tuple[Floats, NDArray[np.int64]]:
    """Scales [m, G] and codes [m, 32 G], in f32 arithmetic and the kernel's order of operations."""
    blocks = np.zeros((x.shape[0], -(-x.shape[1] // 32) * 32), np.float32)
    blocks[:, : x.shape[1]] = x
    grouped = blocks.reshape(x.shape[0], -1, 32)
    largest = np.abs(grouped).max(axis=2)
    if scales == "binary":
        _, exponent = np.frexp(largest / np.float32(127))
        power = np.ldexp(np.float32(1), exponent)
        power[np.ldexp(np.float32(0.5), exponent) == largest / np.float32(127)] /= 2
        codes = np.rint(grouped / power[:, :, None])
        codes[largest < 1e-28] = 0
        power[largest < 1e-28] = 1
        return power, codes.astype(np.int64).reshape(blocks.shape)
    largest[largest < 1e-35] = 0
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(grouped * inverse[:, :, None])
    return largest / np.float32(127), codes.astype(np.int64).reshape(blocks.shape)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("inputs", WIDTHS)
def test_quantize_rows_is_exact(run: Runner, inputs: int, scales: ActivationScales) -> None:
    rng = np.random.default_rng(inputs)
    x = (rng.standard_normal((9, inputs)) * 10.0 ** rng.integers(-8, 8, (9, 1))).astype(np.float32)
    x[1] = 0
    x[2, 0] = 1e-36
    x[3] = 3e-36
    x[4, :] = np.round(x[4, :])  # integers, and a scale of exactly 1: ties
    x[4, 0] = 127
    x[4, 1:8] = (np.arange(7) + 0.5)[: max(0, min(7, inputs - 1))]
    x[7], x[8] = 3e-29, 9e29  # next to what binary scales take
    records, found, starts, data = run.quantize(x, scales)
    reference_scales, reference_codes = quantize_reference(x, scales)
    np.testing.assert_array_equal(found, reference_scales)
    np.testing.assert_array_equal(data, reference_codes)
    np.testing.assert_array_equal(starts, -ZERO[scales] * reference_codes.reshape(9, -1, 32).sum(axis=2))
    layout = activation_layout(inputs)
    padding = np.ones(layout.row_bytes, bool)
    for section in (layout.scales, layout.starts, layout.data):
        padding[section.offset : section.end] = False
    assert not records[:, padding].any()


def test_quantize_rows_keeps_to_its_rows(run: Runner) -> None:
    x = np.ones((5, 77), np.float32)
    layout = activation_layout(77)
    out = np.full((5, layout.row_bytes), 0xAA, np.uint8)
    records = run.call(QuantizeSpec(77, "exact").symbol, [x, out], [1, 3]).reshape(out.shape)
    assert (records[[0, 3, 4]] == 0xAA).all()
    np.testing.assert_array_equal(records[1], run.quantize(x, "exact")[0][0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_fault_in_the_activations_shows(run: Runner, bad: float) -> None:
    x = np.ones((2, 384), np.float32)
    x[1, 40] = bad
    _, scales, _, data = run.quantize(x, "exact")
    assert np.isnan(scales[1]).tolist() == [False, True, *[False] * 10]
    assert not data[1, 32:64].any()
    assert np.isfinite(scales[0]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e30])
@pytest.mark.parametrize("name", INT4)
def test_a_fault_in_binary_records_reaches_every_output_of_its_token(run: Runner, name: str, bad: float) -> None:
    spec = Case(name, "int8", 45, 384, False).spec
    x = np.ones((11, 384), np.float32)
    x[7, 300] = bad
    panels, _ = weights(SCHEMES[name], 45, 384)
    y = run.product(spec, run.quantize(x, "binary")[0], panels, np.empty(0, np.float32), (0, 3))
    assert np.isnan(y[7]).all()
    assert np.isfinite(np.delete(y, 7, axis=0)).all()


def test_groups_of_zeros_stay_zero_whatever_the_activations(run: Runner) -> None:
    spec = Case("int4-g32", "int8", 45, 384, False).spec
    panels = pack_rows(store_rows(np.zeros((45, 384), np.float32), SCHEMES["int4-g32"]), panel_layout(spec.scheme, 384))
    x = np.geomspace(1e-27, 9e29, 12).repeat(32).astype(np.float32)[None]
    y = run.product(spec, run.quantize(x, "binary")[0], panels, np.empty(0, np.float32), (0, 3))
    np.testing.assert_array_equal(y, np.zeros((1, 45), np.float32))


@pytest.mark.parametrize(("name", "outputs", "inputs"), EMBEDDING)
def test_embedding_gathers_rows(run: Runner, name: str, outputs: int, inputs: int) -> None:
    panels, w = weights(SCHEMES[name], outputs, inputs)
    ids = np.array([0, 44, 15, 16, 31, 7, 7, -1, outputs, 2**31 - 1, -(2**31)], np.int32)
    y = np.full((len(ids), inputs), np.nan, np.float32)
    symbol = KernelSpec("embedding", outputs, inputs, SCHEMES[name]).symbol
    found = run.call(symbol, [panels, ids, y], [len(ids)]).view(np.float32).reshape(y.shape)
    np.testing.assert_array_equal(found[:7], w[ids[:7]])
    assert not found[7:].any()


@pytest.mark.parametrize(("name", "middle"), [("int4-g64", 8), ("int8-g64", 128)])
def test_subnormal_scales_count(run: Runner, name: str, middle: int) -> None:
    spec = Case(name, "int8", 45, 384, False).spec
    assert isinstance(spec.scheme, Int4Group | Int8Group)
    codes = np.full((45, 384), middle + 1, np.uint8)
    scale = np.full((45, 6), 2.0**-24 * 3, np.float16)
    scale[:, 3:] *= -1
    panels = pack_rows(QuantizedRows(codes, scale, None), panel_layout(spec.scheme, 384))
    x = np.zeros((1, 384), np.float32)
    x[:, :192] = 127
    assert spec.reads is not None
    records = run.quantize(x, spec.reads.scales)[0]
    y = run.product(spec, records, panels, np.empty(0, np.float32), (0, 3))
    np.testing.assert_array_equal(y, np.float32(192 * 127 * 3 * 2.0**-24))
