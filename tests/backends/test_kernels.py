"""The C kernels against float64 numpy, on every instruction set that this machine runs or emulates."""

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyc.backends.isa import ISAS, Isa
from pyc.backends.kernels import KernelSpec, compile_kernels, kernel_digest, render_source
from pyc.backends.toolchain import Toolchain
from pyc.compiler.layouts import activation_layout, pack_rows, panel_layout, unpack_rows
from pyc.compiler.quantization import QuantizedRows, store_rows
from pyc.compiler.schemes import SCHEMES, Dense, Int4Group, Int8Channel, Scheme, parse_scheme

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

UNIT = 2.0**-24
"""Unit roundoff of f32."""

INT4 = [name for name in SCHEMES if name.startswith("int4")]
# (scheme, activations, N, K, bias): N and K not multiples of anything where the scheme allows it.
LINEAR = [
    *[
        (name, "f32", outputs, inputs, bias)
        for name in ("f32", "f16", "bf16")
        for outputs, inputs, bias in ((45, 77, True), (16, 2, False), (7, 1, False))
    ],
    *[
        ("int8", kind, outputs, inputs, bias)
        for kind in ("int8", "f32")
        for outputs, inputs, bias in ((45, 77, True), (16, 32, False), (3, 5, False))
    ],
    *[(name, kind, 45, 384, kind == "f32") for name in INT4 for kind in ("int8", "f32")],
    ("int4-g32", "int8", 5, 32, True),
]
EMBEDDING = [
    *[(name, 45, 77) for name in ("f32", "f16", "bf16", "int8")],
    *[(name, 45, 256) for name in INT4],
]
WIDTHS = sorted({inputs for _, _, _, inputs, _ in LINEAR})


def linear_spec(case: tuple[str, str, int, int, bool]) -> KernelSpec:
    name, activations, outputs, inputs, bias = case
    return KernelSpec("linear", outputs, inputs, parse_scheme(name, activations), bias)  # type: ignore[arg-type]


SPECS = tuple(
    [linear_spec(case) for case in LINEAR]
    + [KernelSpec("embedding", outputs, inputs, SCHEMES[name]) for name, outputs, inputs in EMBEDDING]
    + [KernelSpec("quantize_rows", 0, inputs, None) for inputs in WIDTHS]
)

# Reads: index of the kernel, count of integers, integers, then for each pointer its size and bytes; the last
# pointer is the output, and is written back.
EMULATED_MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
%(declarations)s
typedef int32_t (*linear)(void *, void *, void *, int32_t, int32_t, int32_t);
typedef int32_t (*linear_bias)(void *, void *, void *, void *, int32_t, int32_t, int32_t);
typedef int32_t (*rows)(void *, void *, int32_t, int32_t);
typedef int32_t (*embedding)(void *, void *, void *, int32_t);
static void *table[] = {%(table)s};
int main(void) {
    int32_t head[3], number[4], sizes[4];
    if (fread(head, 4, 3, stdin) != 3 || fread(number, 4, head[1], stdin) != head[1]) return 2;
    if (fread(sizes, 4, head[2], stdin) != head[2]) return 2;
    void *pointer[4];
    for (int i = 0; i < head[2]; i++) {
        pointer[i] = aligned_alloc(64, (sizes[i] + 64) / 64 * 64);
        if (fread(pointer[i], 1, sizes[i], stdin) != sizes[i]) return 3;
    }
    void *f = table[head[0]];
    if (head[1] == 3 && head[2] == 3) ((linear)f)(pointer[0], pointer[1], pointer[2], number[0], number[1], number[2]);
    if (head[2] == 4)
        ((linear_bias)f)(pointer[0], pointer[1], pointer[2], pointer[3], number[0], number[1], number[2]);
    if (head[1] == 2) ((rows)f)(pointer[0], pointer[1], number[0], number[1]);
    if (head[1] == 1) ((embedding)f)(pointer[0], pointer[1], pointer[2], number[0]);
    fwrite(pointer[head[2] - 1], 1, sizes[head[2] - 1], stdout);
    return 0;
}
"""

Call = Callable[[str, list[NDArray[np.generic]], list[int]], Bytes]
"""Runs a symbol with arrays (the last is the output) and integers; returns the output's bytes."""


def aligned(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A copy at a multiple of 64 bytes, whose end touches the next page's start as closely as that allows."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    out = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def native(toolchain: Toolchain, isa: Isa, folder: Path) -> Call:
    path = folder / f"{isa.name}.so"
    path.write_bytes(toolchain.link_shared([compile_kernels(SPECS, isa, toolchain)], isa, path.name))
    library = ctypes.CDLL(str(path))

    def call(symbol: str, arrays: list[NDArray[np.generic]], integers: list[int]) -> Bytes:
        held = [aligned(array) for array in arrays]
        function = getattr(library, symbol)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in held]
        assert function(*pointers, *[ctypes.c_int32(value) for value in integers]) == 0
        return np.frombuffer(held[-1].tobytes(), np.uint8)

    return call


def emulated(toolchain: Toolchain, isa: Isa, folder: Path) -> Call:
    symbols = sorted({spec.symbol for spec in SPECS})
    text = EMULATED_MAIN % {
        "declarations": "\n".join(f"int32_t {symbol}();" for symbol in symbols),
        "table": ", ".join(symbols),
    }
    (folder / f"{isa.name}.c").write_text(text)
    (folder / f"{isa.name}.o").write_bytes(compile_kernels(SPECS, isa, toolchain))
    target = ["-target", "aarch64-linux-musl", f"-mcpu={isa.zig_cpu}", "-static", "-O1", "-std=gnu17", "-w"]
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        *target,
        f"{isa.name}.c",
        f"{isa.name}.o",
        "-o",
        isa.name,
    ]
    environment = {
        "ZIG_GLOBAL_CACHE_DIR": str(toolchain.cache / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(folder / "zig"),
    }
    subprocess.run(
        command, cwd=folder, check=True, env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment}
    )

    def call(symbol: str, arrays: list[NDArray[np.generic]], integers: list[int]) -> Bytes:
        header = [symbols.index(symbol), len(integers), len(arrays), *integers, *[a.nbytes for a in arrays]]
        data = np.array(header, np.int32).tobytes() + b"".join(array.tobytes() for array in arrays)
        done = subprocess.run(
            ["qemu-aarch64", folder / isa.name], input=data, capture_output=True, check=True
        )
        return np.frombuffer(done.stdout, np.uint8)

    return call


def cpu_features() -> set[str]:
    words = Path("/proc/cpuinfo").read_text().split()
    return set(words)


@pytest.fixture(scope="module")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    return Toolchain(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module", params=list(ISAS))
def run(
    request: pytest.FixtureRequest, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> Call:
    isa = ISAS[request.param]
    import platform

    folder = tmp_path_factory.mktemp(isa.name)
    if platform.machine() == isa.arch:
        if not set(isa.features) <= cpu_features():
            pytest.skip(f"this CPU lacks {set(isa.features) - cpu_features()}")
        return native(toolchain, isa, folder)
    if isa.arch == "aarch64" and shutil.which("qemu-aarch64"):
        return emulated(toolchain, isa, folder)
    compile_kernels(SPECS, isa, toolchain)  # it must compile anywhere
    pytest.skip(f"compiled; not run: this machine is not {isa.arch} and qemu-{isa.arch} is not installed")


def weights(scheme: Scheme, outputs: int, inputs: int, seed: int = 0) -> tuple[Bytes, NDArray[np.float64]]:
    """Random panels and the float64 weights that they stand for."""
    rng = np.random.default_rng([seed, outputs, inputs])
    rows = rng.standard_normal((outputs, inputs), np.float32) * np.exp2(
        rng.integers(-3, 3, (outputs, 1))
    ).astype("f4")
    layout = panel_layout(scheme, inputs)
    panels = pack_rows(store_rows(rows, scheme), layout)
    return panels, unpack_rows(panels, layout, outputs).astype(np.float64)


def quantize(run: Call, x: Floats) -> tuple[Bytes, Floats, NDArray[np.int32], NDArray[np.int8]]:
    """Records of x and their parts."""
    rows, inputs = x.shape
    layout = activation_layout(inputs)
    out = np.full((rows, layout.row_bytes), 0xAA, np.uint8)
    symbol = KernelSpec("quantize_rows", 0, inputs, None).symbol
    records = run(symbol, [x, out], [0, rows]).reshape(rows, -1)
    parts = (np.ascontiguousarray(s.view(records)) for s in (layout.scales, layout.sums, layout.data))
    return records, *parts  # type: ignore[return-value]


def product(
    run: Call,
    spec: KernelSpec,
    x: NDArray[np.generic],
    panels: Bytes,
    bias: Floats,
    panel_range: tuple[int, int] | None = None,
) -> Floats:
    rows = x.shape[0]
    start, stop = panel_range or (0, panels.shape[0])
    y = np.full((rows, spec.outputs), np.nan, np.float32)
    arrays = [x, panels, *([bias] if spec.has_bias else []), y]
    return run(spec.symbol, arrays, [rows, start, stop]).view(np.float32).reshape(rows, -1)


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: "-".join(map(str, case)))
def test_linear_agrees_with_float64(run: Call, case: tuple[str, str, int, int, bool]) -> None:
    spec = linear_spec(case)
    assert spec.scheme is not None
    rng = np.random.default_rng(5)
    x = rng.standard_normal((19, spec.inputs), np.float32)
    bias = rng.standard_normal(spec.outputs, np.float32)
    panels, w = weights(spec.scheme, spec.outputs, spec.inputs)
    given: NDArray[np.generic] = x
    values = x.astype(np.float64)
    if spec.integer:
        given, scale, _, data = quantize(run, x)
        values = (data.reshape(19, -1, 32) * scale.astype(np.float64)[:, :, None]).reshape(19, -1)[
            :, : spec.inputs
        ]
    y = product(run, spec, given, panels, bias)
    reference = values @ w.T + (bias if spec.has_bias else 0)
    # Recursive summation of n terms: n unit roundoffs of the sum of magnitudes (Higham, section 4.2), plus a few
    # for scales, bias and, where there is no fused multiply-add, the products.
    terms = spec.inputs + 8
    bound = terms * UNIT * (np.abs(values) @ np.abs(w.T) + np.abs(bias))
    if spec.integer and isinstance(spec.scheme, Int4Group):
        # (q - zero) is summed as q and zero apart, exactly; only the sums over blocks are rounded.
        bound += terms * UNIT * np.abs(reference)
    assert (np.abs(y - reference) <= bound).all()

    every = [product(run, spec, given[:m], panels, bias) for m in ((1, 2, 3, 4, 5, 6, 7, 8, 9))]
    for part in every:
        np.testing.assert_array_equal(part, y[: len(part)])
    for index in range(len(given)):
        np.testing.assert_array_equal(
            product(run, spec, given[index : index + 1], panels, bias), y[index : index + 1]
        )
    for start in range(panels.shape[0]):
        rows = slice(start * 16, min(start * 16 + 16, spec.outputs))
        piece = product(run, spec, given, panels, bias, (start, start + 1))
        np.testing.assert_array_equal(piece[:, rows], y[:, rows])
        outside = np.delete(piece, np.arange(spec.outputs)[rows], axis=1)
        assert np.isnan(outside).all()
