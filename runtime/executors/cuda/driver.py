"""The CUDA driver (libcuda.so.1) by ctypes: what the executor calls of it, and errors as RunError.

Names, arguments and statuses are those of the CUDA Driver API, version 12 and later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import lru_cache

from pyc.runtime.errors import RunError
from pyc.runtime.host.signal_handlers import unless_signalled

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
LEAST_VERSION = 12000
"""CUDA 12.0, whose drivers have graphs of kernels with their context."""

COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING."""
DISABLE_TIMING = 2
"""CU_EVENT_DISABLE_TIMING."""
_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES = 5, 6
"""CU_JIT_ERROR_LOG_BUFFER and its size."""
_LOG_BYTES = 4096
_ADD_EDGES = "cuGraphAddDependencies_v2"
_PORT_PROGRAMMATIC, _TYPE_PROGRAMMATIC = 1, 1
"""CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC and CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC."""

_U64, _POINTER = c_uint64, c_void_p

_SIGNATURES: dict[str, tuple[type[ctypes._SimpleCData] | type[ctypes._Pointer], ...]] = {  # type: ignore[type-arg]
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(_POINTER), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (_POINTER,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(_U64), c_size_t),
    "cuMemFree_v2": (_U64,),
    "cuMemHostAlloc": (POINTER(_POINTER), c_size_t, c_uint),
    "cuMemFreeHost": (_POINTER,),
    "cuMemcpyHtoDAsync_v2": (_U64, _POINTER, c_size_t, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _U64, c_size_t, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_U64, _U64, c_size_t, _POINTER),
    "cuMemsetD8Async": (_U64, c_ubyte, c_size_t, _POINTER),
    "cuStreamCreate": (POINTER(_POINTER), c_uint),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuEventCreate": (POINTER(_POINTER), c_uint),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventSynchronize": (_POINTER,),
    "cuEventElapsedTime": (POINTER(c_float), _POINTER, _POINTER),
    "cuEventDestroy_v2": (_POINTER,),
    "cuModuleLoadDataEx": (POINTER(_POINTER), _POINTER, c_uint, POINTER(c_int), POINTER(_POINTER)),
    "cuModuleUnload": (_POINTER,),
    "cuModuleGetFunction": (POINTER(_POINTER), _POINTER, c_char_p),
    "cuFuncSetAttribute": (_POINTER, c_int, c_int),
    "cuLaunchKernel": (_POINTER, *(c_uint,) * 7, _POINTER, POINTER(_POINTER), POINTER(_POINTER)),
    "cuGraphCreate": (POINTER(_POINTER), c_uint),
    "cuGraphAddKernelNode_v2": (POINTER(_POINTER), _POINTER, POINTER(_POINTER), c_size_t, _POINTER),
    "cuGraphInstantiateWithFlags": (POINTER(_POINTER), _POINTER, c_uint64),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphExecDestroy": (_POINTER,),
    "cuGraphDestroy": (_POINTER,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
}


_OPTIONAL: dict[str, tuple[type[ctypes._SimpleCData] | type[ctypes._Pointer], ...]] = {  # type: ignore[type-arg]
    _ADD_EDGES: (_POINTER, POINTER(_POINTER), POINTER(_POINTER), _POINTER, c_size_t),
}
"""What drivers since CUDA 12.3 have."""


class _EdgeData(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = (
        ("from_port", c_ubyte),
        ("to_port", c_ubyte),
        ("type", c_ubyte),
        ("reserved", c_ubyte * 5),
    )


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("func", c_void_p),
        *((f"{of}{axis}", c_uint) for of in ("gridDim", "blockDim") for axis in "XYZ"),
        ("sharedMemBytes", c_uint),
        ("kernelParams", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    )


class Driver:
    """The driver's functions, each of which raises RunError where its status is not success."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Bind the functions. Raises RunError for a library that lacks one, or a driver that is too old."""
        self._library = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name, None)
            if function is None:
                raise RunError(f"backend cuda: the NVIDIA driver has no {name}; install one for CUDA 12 or later")
            function.argtypes, function.restype = arguments, c_int
        self._optional: set[str] = set()
        for name, arguments in _OPTIONAL.items():
            function = getattr(library, name, None)
            if function is not None:
                function.argtypes, function.restype = arguments, c_int
                self._optional.add(name)
        status = self.status("cuInit", 0)
        if status:
            raise no_gpu(self.error_text(status))
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        self.version = version.value
        if self.version < LEAST_VERSION:
            raise RunError(
                f"backend cuda: the NVIDIA driver is for CUDA {_version_text(self.version)}, expected "
                f"{_version_text(LEAST_VERSION)} or later; install a newer driver"
            )

    @property
    def has_programmatic_edges(self) -> bool:
        """Whether there is what `add_programmatic_edges` calls."""
        return _ADD_EDGES in self._optional

    def add_programmatic_edges(self, graph: int, edges: Sequence[tuple[int, int]]) -> None:
        """Let nodes (second) of a graph begin before those that they wait for (first) have ended. Raises RunError.

        One call has edges of one kind alone: there are drivers that take the first edge's kind for all of a call.
        """
        if edges:
            before, after = (handles(nodes) for nodes in zip(*edges, strict=True))
            kinds = (_EdgeData * len(edges))(*[_EdgeData(_PORT_PROGRAMMATIC, 0, _TYPE_PROGRAMMATIC)] * len(edges))
            self.call(_ADD_EDGES, graph, before, after, ctypes.cast(kinds, c_void_p), len(edges))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver; RunError says which failed, and why."""
        status = self.status(name, *arguments)
        if status:
            raise RunError(f"CUDA: {name}: {self.error_text(status)}")

    def status(self, name: str, *arguments: object) -> int:
        """Call a function of the driver and return its status."""
        return int(getattr(self._library, name)(*arguments))

    def made(self, name: str, *arguments: object) -> int:
        """Call a function whose first argument is where it puts a handle, and return that."""
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return int(made.value or 0)

    def error_text(self, status: int) -> str:
        """Return the name of a status and what it means."""
        found = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if not getattr(self._library, name)(status, byref(text)) and text.value:
                found.append(text.value.decode("utf-8", "replace"))
        return ": ".join(found) or f"status {status}"

    def load_module(self, image: bytes) -> int:
        """Return the module of a cubin, or of PTX, which the driver compiles; RunError quotes what it says."""
        module, log = c_void_p(), ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        status = self.status("cuModuleLoadDataEx", byref(module), image, 2, options, values)
        if status:
            said = " ".join(log.value.decode("utf-8", "replace").split())
            raise RunError(
                f"CUDA: the driver does not load the program: {self.error_text(status)}{': ' if said else ''}{said}; "
                "build the artifact for this GPU, or install a newer driver"
            )
        return int(module.value or 0)


def no_gpu(why: str) -> RunError:
    """Return the error of a machine whose driver finds no GPU."""
    return RunError(
        f"backend cuda: the NVIDIA driver finds no GPU{f' ({why})' if why else ''}; run it where there is one, or run "
        "another program of the artifact (--backend)"
    )


@lru_cache(maxsize=1)
def open_driver() -> Driver:
    """Return the machine's driver; RunError where there is none."""
    return Driver(_load(LIBRARY))


def _load(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except unless_signalled(OSError) as error:
        raise RunError(
            f"backend cuda: it needs an NVIDIA GPU and its driver, and there is no {name}; run it where there is "
            "one, or run another program of the artifact (--backend)"
        ) from error


def handles(found: Sequence[int]) -> ctypes.Array[c_void_p] | None:
    """Return an array of handles; None for none of them."""
    return (c_void_p * len(found))(*found) if found else None


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


