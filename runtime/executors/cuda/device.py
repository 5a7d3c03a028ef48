"""A GPU by the driver: its memory, copies on a stream, and what is given back when nobody has it any more."""

from __future__ import annotations

import ctypes
import os
import weakref
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.executors.cuda.driver import (
    COMPUTE_MAJOR,
    COMPUTE_MINOR,
    DISABLE_TIMING,
    NON_BLOCKING,
    OUT_OF_MEMORY,
    Driver,
    no_gpu,
)

RESERVE_BYTES = 64 << 20
"""What is left free of a device's memory: the driver takes some for modules and graphs."""

AnyArray = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its number among those that CUDA shows, its name, its memory, and its compute capability."""

    ordinal: int
    name: str
    memory_bytes: int
    capability: tuple[int, int]


def find_gpu(driver: Driver) -> Gpu:
    """Return the first GPU that CUDA shows (CUDA_VISIBLE_DEVICES chooses); RunError where there is none.

    It is only asked about: the context, which takes time and memory, is a `Device`'s.
    """
    count = c_int()
    status = driver.status("cuDeviceGetCount", byref(count))
    if status or not count.value:
        raise no_gpu(driver.error_text(status) if status else "")
    ordinal, name, total = c_int(), ctypes.create_string_buffer(256), c_size_t()
    driver.call("cuDeviceGet", byref(ordinal), 0)
    driver.call("cuDeviceGetName", name, len(name), ordinal)
    driver.call("cuDeviceTotalMem_v2", byref(total), ordinal)
    numbers = c_int(), c_int()
    for number, attribute in zip(numbers, (COMPUTE_MAJOR, COMPUTE_MINOR), strict=True):
        driver.call("cuDeviceGetAttribute", byref(number), attribute, ordinal)
    major, minor = (number.value for number in numbers)
    return Gpu(ordinal.value, name.value.decode("utf-8", "replace"), total.value, (major, minor))


class Device:
    """A GPU in use: its context, with a stream that all work goes into."""

    def __init__(self, driver: Driver, gpu: Gpu) -> None:
        """Raises RunError where the driver gives no context."""
        self.driver, self.name, self.memory_bytes = driver, gpu.name, gpu.memory_bytes
        self.capability = gpu.capability
        self._context = driver.made("cuDevicePrimaryCtxRetain", gpu.ordinal)
        driver.call("cuCtxSetCurrent", self._context)
        self.stream = driver.made("cuStreamCreate", NON_BLOCKING)
        self._owned = _Owned(os.getpid())
        self.read_bytes = 0
        """Bytes that were copied to this process's memory."""
        # At the end of the process the driver takes all back by itself, and may be gone already.
        weakref.finalize(
            self, _give_back, driver, self._context, self.stream, self._owned, gpu.ordinal
        ).atexit = False

    def enter(self) -> None:
        """Make the device that of this thread. Raises RunError in a child that was forked since."""
        if os.getpid() != self._owned.process:
            raise RunError("CUDA: this model was loaded by another process, whose child this is; load it here")
        self.driver.call("cuCtxSetCurrent", self._context)

    def free_bytes(self) -> int:
        """Return how much memory is free, less what the driver may need."""
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return max(free.value - RESERVE_BYTES, 0)

    def allocate(self, size_bytes: int, what: str) -> int:
        """Return the address of memory. Raises RunError, which names `what`, where there is not enough."""
        address = c_uint64()
        status = self.driver.status("cuMemAlloc_v2", byref(address), max(size_bytes, 1))
        if status == OUT_OF_MEMORY:
            raise RunError(
                f"CUDA: {what} takes {size_bytes / 1e9:.2f} GB, and {self.name} has {self.free_bytes() / 1e9:.2f} of "
                f"{self.memory_bytes / 1e9:.0f} GB free; load with a smaller context (pyc run --context), or end what "
                "else uses the GPU"
            )
        if status:
            raise RunError(f"CUDA: cuMemAlloc: {self.driver.error_text(status)}")
        self._owned.memory.append(address.value)
        return address.value

    def pinned(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return memory of this process from which copies run beside its work. It goes when the device does."""
        made = c_void_p()
        self.driver.call("cuMemHostAlloc", byref(made), max(size_bytes, 1), 0)
        assert made.value is not None
        self._owned.pinned.append(made.value)
        return np.frombuffer(memoryview((c_ubyte * max(size_bytes, 1)).from_address(made.value)), np.uint8)

    def release_pinned(self, array: NDArray[np.uint8]) -> None:
        """Give back what `pinned` returned."""
        address = array.ctypes.data
        self._owned.pinned.remove(address)
        self.driver.call("cuMemFreeHost", address)

    def clear(self, address: int, size_bytes: int) -> None:
        """Fill memory with zeros."""
        if size_bytes:
            self.driver.call("cuMemsetD8Async", address, 0, size_bytes, self.stream)

    def upload(self, source: int, address: int, size_bytes: int) -> None:
        """Copy from this process's memory, which stays as it is until `wait`, to the device."""
        if size_bytes:
            self.driver.call("cuMemcpyHtoDAsync_v2", address, source, size_bytes, self.stream)

    def download(self, address: int, target: int, size_bytes: int) -> None:
        """Copy from the device to this process's memory, which has it after `wait`."""
        self.read_bytes += size_bytes
        if size_bytes:
            self.driver.call("cuMemcpyDtoHAsync_v2", target, address, size_bytes, self.stream)

    def copy(self, source: int, target: int, size_bytes: int) -> None:
        """Copy from the device to the device."""
        if size_bytes:
            self.driver.call("cuMemcpyDtoDAsync_v2", target, source, size_bytes, self.stream)

    def event(self) -> int:
        """Return an event, which `record` puts behind the work so far."""
        made = self.driver.made("cuEventCreate", DISABLE_TIMING)
        self._owned.events.append(made)
        return made

    def record(self, event: int) -> None:
        """Put an event behind all work so far."""
        self.driver.call("cuEventRecord", event, self.stream)

    def wait_for(self, event: int) -> None:
        """Wait until all work before an event is done."""
        self.driver.call("cuEventSynchronize", event)

    def wait(self) -> None:
        """Wait until all work is done; RunError for kernels that failed."""
        self.driver.call("cuStreamSynchronize", self.stream)

    def module(self, image: bytes) -> int:
        """Load machine code, or PTX. Raises RunError."""
        made = self.driver.load_module(image)
        self._owned.modules.append(made)
        return made

    def own_graph(self, graph: int) -> None:
        """Give a graph that can be launched back with the rest."""
        self._owned.graphs.append(graph)


class _Owned:
    """What has to be given back."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.memory: list[int] = []
        self.pinned: list[int] = []
        self.events: list[int] = []
        self.modules: list[int] = []
        self.graphs: list[int] = []


def _give_back(driver: Driver, context: int, stream: int, owned: _Owned, ordinal: int) -> None:
    """Give all back, when nobody has the device any more; what CUDA says of it helps nobody. A forked child has nothing
    to give."""
    if os.getpid() != owned.process or driver.status("cuCtxSetCurrent", context):
        return
    driver.status("cuStreamSynchronize", stream)
    for name, handles in (
        ("cuGraphExecDestroy", owned.graphs),
        ("cuModuleUnload", owned.modules),
        ("cuEventDestroy_v2", owned.events),
        ("cuMemFreeHost", owned.pinned),
        ("cuMemFree_v2", owned.memory),
        ("cuStreamDestroy_v2", [stream]),
    ):
        for handle in handles:
            driver.status(name, handle)
    driver.status("cuDevicePrimaryCtxRelease_v2", ordinal)
