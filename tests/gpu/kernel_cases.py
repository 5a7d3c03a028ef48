"""Kernels alone on a GPU: what they are given, and what they are to compute, stored where there is none.

`write_cases` compiles linear layers over every kind of division and stores them beside their arrays; `run_cases` runs
them on the GPU and compares, with the bounds of tests/backends/cuda/kernels.
"""

import sys
from ctypes import addressof, byref, c_uint64, c_void_p
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from pyc.runtime.executors.cuda.device import Device, find_gpu
from pyc.runtime.executors.cuda.driver import MAX_DYNAMIC_SHARED, open_driver

OUTPUTS, INPUTS = 150, 640
ROWS = (1, 8, 12, 270)
SCHEMES = ("bf16", "fp8", "int8", "int4-g128", "int4-g32-asym", "lut4-g32", "lut5-g32", "ternary", "mxfp4")
DIVISIONS = (
    *((256, 2, 4, 1, 1), (128, 2, 4, 1, 2), (64, 2, 6, 1, 1), (64, 1, 5, 2, 1), (64, 1, 4, 2, 2)),
    *((32, 2, 8, 1, 1), (32, 1, 8, 1, 4), (32, 1, 4, 4, 2)),
)
"""Of 270 rows: rows of a block, warpgroups, stages, how many share a tile, splits."""


class Launched(msgspec.Struct):
    """A launch of a case, and its arguments by name."""

    symbol: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    arguments: tuple[str, ...]
    code: bytes


class Case(msgspec.Struct):
    """A linear layer: `matrix` names arrays, `rounding` what activations become, `scratch` and `zeroed` are bytes by
    name."""

    name: str
    matrix: str
    rows: int
    rounding: str
    launches: list[Launched]
    scratch: dict[str, int]
    zeroed: dict[str, int]
    additions: int


def write_cases(folder: Path, arch: str) -> None:
    """Store the cases for one kind of GPU."""
    sys.path.append(str(Path(__file__).parents[1] / "plugins"))
    from cuda_linear import matrix, spec_of

    from pyc.backends.cuda.kernels import linear
    from pyc.backends.cuda.kernels.warpgroup_tiles import WarpgroupTiles

    folder.mkdir(parents=True, exist_ok=True)
    chosen_before, cases = linear.warpgroup_tiles, []
    for scheme in SCHEMES:
        stored = matrix(scheme, OUTPUTS, INPUTS)
        np.savez_compressed(folder / f"{scheme}.npz", values=stored.values, **stored.arrays)
        for activations, rows in product(("bf16", "f32", "int8"), ROWS):
            if activations == "int8" and rows > 1:
                continue
            spec = spec_of(scheme, rows, OUTPUTS, INPUTS, activations=activations)
            lowered = linear.lower_linear(spec, has_warpgroups=rows == 1)
            cases.append(_compiled(f"{scheme} {activations} {rows}", spec, lowered, scheme, arch))
        spec = spec_of(scheme, ROWS[-1], OUTPUTS, INPUTS, activations="bf16")
        for division in DIVISIONS:
            if division[0] == 256 and spec.matrix.group and not spec.matrix.folds:
                continue
            linear.warpgroup_tiles = lambda _, division=division: WarpgroupTiles(*division)
            lowered = linear.lower_linear(spec, has_warpgroups=True)
            cases.append(_compiled(f"{scheme} warpgroups {division}", spec, lowered, scheme, arch))
        linear.warpgroup_tiles = chosen_before
    (folder / "cases").write_bytes(msgspec.msgpack.encode(cases))


def _compiled(name, spec, lowered, matrix: str, arch: str) -> Case:
    from pyc.backends.cuda.archs import find_arch
    from pyc.backends.cuda.kernels.gemv_integers import suits_integers
    from pyc.backends.cuda.toolchain.nvrtc import compile_kernels

    launches = []
    for kernel, arguments in ((step.kernel, step.arguments) for step in lowered.steps):
        code = compile_kernels((kernel.source,), find_arch(arch))
        shape = (kernel.grid, kernel.threads, kernel.shared_bytes)
        launches.append(Launched(kernel.symbol, *shape, arguments, code))
    additions = 6 * -(-spec.inputs // 16) + 12
    memory = (dict(lowered.scratch), dict(lowered.zeroed))
    rounding = "f32" if spec.splits else "bf16"
    if suits_integers(spec):
        rounding = "int8" if spec.is_integer else "int16"
    return Case(name, matrix, spec.rows, rounding, launches, *memory, additions)


def run_cases(folder: Path) -> list[dict[str, object]]:
    """Return, for each case, the largest error by its bound; 1 is too much."""
    driver = open_driver()
    device = Device(driver, find_gpu(driver))
    found = []
    for case in msgspec.msgpack.decode((folder / "cases").read_bytes(), type=list[Case]):
        arrays = dict(np.load(folder / f"{case.matrix}.npz"))
        values = arrays.pop("values")
        rng = np.random.default_rng(case.rows)
        arrays["x"] = rng.standard_normal((case.rows, INPUTS), np.float32)
        result = _run(device, case, arrays)
        exact = ROUNDED[case.rounding](arrays["x"])
        expected = exact.astype(np.float64) @ values.T
        magnitude = np.abs(exact).astype(np.float64) @ np.abs(values).T
        bound = magnitude * (case.additions * 2.0**-24 + (2.0**-18 if case.rounding == "f32" else 0))
        error = float(np.max(np.where(np.isfinite(result), np.abs(result - expected) / bound, np.inf)))
        found.append({"case": case.name, "error_of_bound": error, "is_right": error <= 1})
    return found


def _run(device: Device, case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The result of a case's launches; memory that nobody wrote is NaN."""
    result = np.full((case.rows, OUTPUTS), np.nan, np.float32)
    places = {name: device.allocate(size, name) for name, size in {**case.scratch, **case.zeroed}.items()}
    for name, size in case.zeroed.items():
        device.clear(places[name], size)
    for name, array in {**arrays, "result": result}.items():
        places[name] = device.allocate(array.nbytes, name)
        device.upload(np.ascontiguousarray(array).ctypes.data, places[name], array.nbytes)
    device.wait()
    for launch in case.launches:
        function = c_void_p()
        module = device.module(launch.code)
        device.driver.call("cuModuleGetFunction", byref(function), module, launch.symbol.encode())
        device.driver.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, launch.shared_bytes)
        given = (c_uint64 * len(launch.arguments))(*(places[name] for name in launch.arguments))
        pointers = (c_void_p * len(given))(*(addressof(given) + 8 * index for index in range(len(given))))
        geometry = (*launch.grid, launch.threads, 1, 1, launch.shared_bytes)
        device.driver.call("cuLaunchKernel", function, *geometry, device.stream, pointers, None)
    device.wait()
    device.download(places["result"], result.ctypes.data, result.nbytes)
    device.wait()
    return result


def _bf16(x: np.ndarray) -> np.ndarray:
    """To the nearest, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def _integers(x: np.ndarray, most: int) -> np.ndarray:
    """Multiples of a scale for 32 inputs, to the nearest, as the kernel divides."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    codes = np.rint(blocks * (np.float32(most) / largest)).astype(np.float64)
    return (codes * (largest / np.float32(most))).reshape(x.shape)


ROUNDED = {
    "f32": np.asarray,
    "bf16": _bf16,
    "int8": lambda x: _integers(x, 127),
    "int16": lambda x: _integers(x, 32512),
}
"""What activations become."""
