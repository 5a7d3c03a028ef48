"""Runs CUDA kernels without a GPU: their C++ compiled for the host, under a libcuda.so that emulates the driver.

tests/emulation/cuda has both: `emulation.h` in place of what NVRTC has built in, `driver.cpp` in place of a GPU. Every
access to global and shared memory is checked: out of bounds, not written before, raced for.

`compile_emulated` makes the image that `cuModuleLoadData` takes in place of a cubin, `emulated_driver` the library,
`run_kernel` runs launches over arrays.
"""

import ctypes
import hashlib
import os
import re
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from pyc.backends.cpu.isa import ISAS, host_isa, oldest_isa
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.backends.cuda.kernels.kernel import Kernel
from pyc.backends.cuda.toolchain.nvrtc import headers, program_text
from pyc.runtime.host.cache_folder import cache_directory

FOLDER = Path(__file__).parents[1] / "emulation" / "cuda"
CPP = ("-x", "c++", "-std=gnu++17", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-Wno-unknown-pragmas")
# Instrumented, as for ThreadSanitizer; accesses that it thinks are seen by others anyway count here.
WATCHED = (
    *CPP,
    "-O1",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-Wno-everything",
    "-Xclang",
    "-fsanitize=thread,alignment,array-bounds",
    "-Xclang",
    "-fsanitize-recover=alignment,array-bounds",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
)
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\(\s*(\w+)[^)]*\)\s*)?(\w+)\s*\(")
EARLIER = Kernel(
    "earlier",
    """#include "dependent_launch.cuh"
extern "C" __global__ void __launch_bounds__(128) earlier(unsigned char* bytes, unsigned long long size) {
    pyc::let_later_launches_begin();
    pyc::wait_for_earlier_launches();
    const unsigned none = blockIdx.x >> 31;
    unsigned* const words = (unsigned*)bytes;
    for (unsigned long long i = blockIdx.x * 128 + threadIdx.x; i < size / 4; i += gridDim.x * 128) words[i] += none;
    if (blockIdx.x == 0 && threadIdx.x < size % 4) bytes[size / 4 * 4 + threadIdx.x] += none;
}
""",
    (4, 1, 1),
    128,
)
"""Reads and writes all of an array, and leaves it as it is."""
TABLE = """
extern "C" char __start_emulated_shared[] __attribute__((weak));
extern "C" char __stop_emulated_shared[] __attribute__((weak));
static const emulated_kernel emulated_kernels[] = {%s};
extern "C" const emulated_module_table emulated_module;
extern "C" const emulated_module_table emulated_module = {
    emulated_kernels, %d, __start_emulated_shared, __stop_emulated_shared};
"""


class CudaError(Exception):
    """What a call of the driver returned: a code, its name, and its text."""


def emulated_driver() -> Path:
    """The emulated libcuda.so."""
    return _kept("libcuda", _driver_source(), _link_driver)


def compile_emulated(source: str) -> bytes:
    """The image, for the emulated device, of kernels; `source` is what NVRTC would compile."""
    return _image(source).read_bytes()


@cache
def _image(source):
    found = [(symbol, threads if threads and threads.isdigit() else "0") for threads, symbol in KERNEL.findall(source)]
    assert found, "the source has no kernels"
    kernels = ", ".join(f"EMULATED_KERNEL({symbol}, {threads})" for symbol, threads in found)
    text = f'#include "emulation.h"\n{source}\n{TABLE % (kernels, len(found))}'
    return _kept("kernels", text, _link_kernels)


def _link_kernels(text):
    own = {"emulation.h": (FOLDER / "emulation.h").read_text(), **headers()}
    rolled = {name: header.replace("#pragma unroll\n", "") for name, header in own.items()}  # for less to compile
    compiled = _toolchain().compile_object(text.replace("#pragma unroll\n", ""), _isa(), rolled, WATCHED)
    return _linked([compiled], [str(emulated_driver())], "kernels.so")


def _link_driver(source):
    own = {path.name: path.read_text() for path in FOLDER.glob("*.h")}
    return _linked([_toolchain().compile_object(source, _isa(), own, CPP)], ["-ldl"], "libcuda-emulated.so")


def _linked(objects, more, soname):
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{index}.o" for index in range(len(objects))]
        for name, data in zip(names, objects, strict=True):
            (Path(folder) / name).write_bytes(data)
        _toolchain().link_files([*names, *more], "library.so", _isa(), soname, Path(folder))
        return (Path(folder) / "library.so").read_bytes()


def _driver_source():
    return (FOLDER / "driver.cpp").read_text()


def _kept(name, source, make):
    """The file of a library that `make` makes of `source`, kept by the digest of all that goes into it."""
    parts = [source, *sorted(headers().values()), _isa().name, _toolchain().version, repr(WATCHED)]
    parts += [path.read_text() for path in sorted(FOLDER.iterdir())] if name == "libcuda" else [_driver_digest()]
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    path = _folder() / f"{name}-{digest}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        data = make(source)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    return path


def _driver_digest():
    return emulated_driver().name + (FOLDER / "emulation.h").read_text()


def _folder():
    """$PYC_EMULATED_KERNELS keeps them longer than the tests' own cache does."""
    kept = os.environ.get("PYC_EMULATED_KERNELS")
    return Path(kept) if kept else (cache_directory() or Path(tempfile.gettempdir())) / "emulated"


@cache
def _toolchain():
    return Toolchain(cache_directory())


@cache
def _isa():
    best = host_isa()
    return ISAS["x86-64-v3"] if best and best.arch == "x86_64" and best.rank else oldest_isa(os.uname().machine)


class Device:
    """The emulated device of this process, through the driver's interface."""

    def __init__(self):
        self.driver = ctypes.CDLL(str(emulated_driver()))
        self.call("cuInit", 0)
        self._modules, self._functions = {}, {}

    def call(self, name, *arguments):
        """Call the driver; raises CudaError."""
        code = getattr(self.driver, name)(*arguments)
        if code:
            words, text = ctypes.c_char_p(), ctypes.c_char_p()
            self.driver.cuGetErrorName(code, ctypes.byref(words))
            self.driver.cuGetErrorString(code, ctypes.byref(text))
            raise CudaError(f"{words.value.decode()}: {text.value.decode()}")

    def configure(self, name, value):
        assert self.driver.emulated_configure(name.encode(), ctypes.c_uint64(value)), name

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address):
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def upload(self, address, array):
        data = np.ascontiguousarray(array)
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), _pointer(data), ctypes.c_size_t(data.nbytes), None)

    def download(self, address, shape, dtype):
        array = np.empty(shape, dtype)
        size = ctypes.c_size_t(array.nbytes)
        self.call("cuMemcpyDtoHAsync_v2", _pointer(array), ctypes.c_uint64(address), size, None)
        return array

    def function(self, source, symbol):
        """The kernel of that name in the compiled `source`."""
        if (source, symbol) not in self._functions:
            if source not in self._modules:
                self._modules[source] = module = ctypes.c_void_p()
                image = compile_emulated(source)
                self.call("cuModuleLoadDataEx", ctypes.byref(module), image, 0, None, None)
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), self._modules[source], symbol.encode())
            self._functions[source, symbol] = function
        return self._functions[source, symbol]

    def preload(self, kernels):
        """Compile kernels together, which takes a fraction of the time that one after another does."""
        new = [kernel for kernel in kernels if (program_text([kernel.source]), kernel.symbol) not in self._functions]
        if new:
            together = program_text(list(dict.fromkeys(kernel.source for kernel in new)))
            for kernel in new:
                function = self.function(together, kernel.symbol)
                self._functions[program_text([kernel.source]), kernel.symbol] = function

    def launch(self, kernel, addresses):
        """Launch a kernel on arrays at `addresses`."""
        function = self._prepared(kernel)
        geometry = (*kernel.grid, kernel.threads, 1, 1, kernel.shared_bytes)
        values, parameters = _parameters(addresses)
        self.call("cuLaunchKernel", function, *geometry, None, parameters, None)
        del values

    def graph(self, launches, programmatic=False):
        """The instantiated graph of (kernel, addresses, numbers of the launches that it waits for).

        With `programmatic` edges a launch that waits for one other may begin before that has ended.
        """
        return self.instantiated(self.nodes(launches, programmatic)[0])

    def nodes(self, launches, programmatic=False):
        """The same not instantiated, and its nodes."""
        graph = ctypes.c_void_p()
        self.call("cuGraphCreate", ctypes.byref(graph), 0)
        nodes = (ctypes.c_void_p * len(launches))()
        for index, (kernel, addresses, after) in enumerate(launches):
            values, parameters = _parameters(addresses)
            geometry = (*kernel.grid, kernel.threads, 1, 1, kernel.shared_bytes)
            node = _KernelNode(self._prepared(kernel), *geometry, ctypes.cast(parameters, ctypes.c_void_p))
            early = after if programmatic and len(after) == 1 else ()
            before = (ctypes.c_void_p * (len(after) + 1))(*[nodes[number] for number in after])
            place = ctypes.byref(nodes, index * ctypes.sizeof(ctypes.c_void_p))
            count = ctypes.c_size_t(0 if early else len(after))
            self.call("cuGraphAddKernelNode_v2", place, graph, before, count, ctypes.byref(node))
            for number in early:
                of = ctypes.byref(nodes, number * ctypes.sizeof(ctypes.c_void_p))
                self.call("cuGraphAddDependencies_v2", graph, of, place, bytes([1, 0, 1, *[0] * 5]), ctypes.c_size_t(1))
            del values
        return graph, nodes

    def instantiated(self, graph):
        made = ctypes.c_void_p()
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        return made

    def _prepared(self, kernel):
        function = self.function(program_text([kernel.source]), kernel.symbol)
        self.call("cuFuncSetAttribute", function, 8, kernel.shared_bytes)
        return function


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared_bytes")),
        *((name, ctypes.c_void_p) for name in ("parameters", "extra", "kernel", "context")),
    )


def _parameters(addresses):
    """The values of a launch's parameters, and the array of their places."""
    values = (ctypes.c_uint64 * (len(addresses) + 1))(*addresses)
    places = [ctypes.addressof(values) + 8 * index for index in range(len(addresses))]
    return values, (ctypes.c_void_p * (len(places) + 1))(*places)


def _pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


@cache
def device():
    return Device()


def preload(lowered):
    """Compile the kernels of many operations together."""
    device().preload({step.kernel.symbol: step.kernel for one in lowered for step in one.steps}.values())


def run_kernel(lowered, arrays, results, seed=0, waits=True):
    """Run the launches of `lowered` on copies of `arrays` by name; `results` maps names to (shape, dtype), or to None
    for an array that is given and changed. Returns the results by name. Threads and blocks take turns by `seed`.

    Each launch begins before the one before it has ended, unless `waits` is false; the first one before launches that
    write all of `arrays` but matrices. Raises CudaError where a kernel does what it must not.
    """
    gpu = device()
    gpu.configure("seed", seed)
    sizes = {name: array.nbytes for name, array in arrays.items()}
    made = {name: result for name, result in results.items() if result is not None}
    sizes |= {name: int(np.prod(shape)) * np.dtype(dtype).itemsize for name, (shape, dtype) in made.items()}
    sizes |= {**lowered.scratch, **lowered.zeroed}
    addresses = {name: gpu.allocate(max(size, 1)) for name, size in sizes.items()}
    try:
        for name, array in arrays.items():
            gpu.upload(addresses[name], array)
        for name, size in lowered.zeroed.items():
            gpu.upload(addresses[name], np.zeros(size, np.uint8))
        launches = [(step.kernel, [addresses[name] for name in step.arguments]) for step in lowered.steps]
        if waits:
            written = [name for name in arrays if name not in lowered.early and not name.startswith("weight")]
            launches = [(EARLIER, (addresses[name], arrays[name].nbytes)) for name in written] + launches
        chain = [(*launch, (number - 1,) if number else ()) for number, launch in enumerate(launches)]
        gpu.call("cuGraphLaunch", gpu.graph(chain, programmatic=waits), None)
        gpu.call("cuCtxSynchronize")
        for name, size in lowered.zeroed.items():
            assert not gpu.download(addresses[name], (size,), np.uint8).any(), f"{name} is not zeros behind the launch"
        shapes = {name: result or (arrays[name].shape, arrays[name].dtype) for name, result in results.items()}
        return {name: gpu.download(addresses[name], *shape) for name, shape in shapes.items()}
    finally:
        gpu.driver.emulated_reset()
        for address in addresses.values():
            gpu.free(address)


def same_in_every_order(lowered, arrays, results, seeds=(0, 1)):
    """The results of `run_kernel`, which are the same bits for each of `seeds`."""
    first, *others = (run_kernel(lowered, arrays, results, seed) for seed in seeds)
    for other in others:
        for name, array in first.items():
            np.testing.assert_array_equal(array, other[name])
    return first
