"""The GPU by CUDA's runtime: memory, copies, a stream, and graphs of work that is put into it once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.executors.tensorrt.documented import Cuda, Handle

LARGEST_PITCH = (1 << 31) - 1
"""Bytes between the rows of a copy: what every GPU allows (memPitch)."""
_OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of memory on the device: the first one's address, and the bytes from one to the next."""

    address: int
    pitch: int


class Device:
    """The GPU that CUDA takes by default (CUDA_VISIBLE_DEVICES chooses), with a stream that all work goes into."""

    def __init__(self, cuda: Cuda) -> None:
        """Raises RunError where there is no GPU, or no driver for it."""
        self._cuda = cuda
        require_gpu(cuda)
        properties = self._made(cuda.cudaGetDeviceProperties(self._made(cuda.cudaGetDevice())))
        name = properties.name
        self.name: str = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        self.capability = f"{properties.major}.{properties.minor}"
        version = int(self._made(cuda.cudaDriverGetVersion()))
        self.driver = f"{version // 1000}.{version % 1000 // 10}"
        """The newest CUDA that the driver runs."""
        self.memory_bytes = int(properties.totalGlobalMem)
        self._stream: Handle = self._made(cuda.cudaStreamCreateWithFlags(cuda.cudaStreamNonBlocking))
        self._owned: set[int] = set()
        self._captured: list[Handle] = []
        # At the end of the process the driver takes all back by itself, and may be gone already.
        weakref.finalize(self, _give_back, cuda, self._owned, self._captured, self._stream).atexit = False

    @property
    def stream(self) -> int:
        """The stream as TensorRT takes it."""
        return int(self._stream)

    def allocate(self, size_bytes: int, what: str) -> int:
        """Return the address of memory of zeros. Raises RunError, which names `what`, where there is not enough."""
        status, address = _pair(self._cuda.cudaMalloc(size_bytes))
        if int(status) == _OUT_OF_MEMORY:
            raise RunError(
                f"{what} takes {size_bytes / 1e9:.2f} GB, which {self.name} with {self.memory_bytes / 1e9:.0f} GB has "
                "not free; load with a smaller context (pyc run --context), or end what else uses the GPU"
            )
        self._check(status)
        self._owned.add(int(address))
        self._done(self._cuda.cudaMemsetAsync(int(address), 0, size_bytes, self._stream))
        return int(address)

    def free(self, address: int) -> None:
        """Give memory back."""
        self._owned.discard(address)
        self._done(self._cuda.cudaFree(address))

    def upload(self, array: NDArray[np.generic], address: int) -> None:
        """Copy an array, which is contiguous and stays as it is until `wait`, to the device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._done(self._cuda.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, self._stream))

    def download(self, address: int, array: NDArray[np.generic]) -> None:
        """Copy memory of the device into a contiguous array, which has it after `wait`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._done(self._cuda.cudaMemcpyAsync(array.ctypes.data, address, array.nbytes, kind, self._stream))

    def copy_rows(self, target: Rows, source: Rows, width: int, count: int) -> None:
        """Copy `width` bytes of each of `count` rows."""
        if max(target.pitch, source.pitch) > LARGEST_PITCH:
            kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
            for row in range(count):
                at, of = target.address + row * target.pitch, source.address + row * source.pitch
                self._done(self._cuda.cudaMemcpyAsync(at, of, width, kind, self._stream))
            return
        self._done(
            self._cuda.cudaMemcpy2DAsync(
                target.address,
                target.pitch,
                source.address,
                source.pitch,
                width,
                count,
                self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice,
                self._stream,
            )
        )

    def wait(self) -> None:
        """Wait until all work is done."""
        self._done(self._cuda.cudaStreamSynchronize(self._stream))

    def captured(self, work: Callable[[], None]) -> Handle:
        """Return the work that `work` puts into the stream as something to `launch`, without doing it."""
        cuda = self._cuda
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._done(cuda.cudaStreamBeginCapture(self._stream, mode))
        try:
            work()
        finally:
            ended = cuda.cudaStreamEndCapture(self._stream)
        graph = self._made(ended)
        try:
            made = self._made(cuda.cudaGraphInstantiate(graph, 0))
            self._captured.append(made)
            return made
        finally:
            self._done(cuda.cudaGraphDestroy(graph))

    def launch(self, captured: Handle) -> None:
        """Put captured work into the stream."""
        self._done(self._cuda.cudaGraphLaunch(captured, self._stream))

    def drop(self, captured: Handle) -> None:
        """Give captured work back."""
        self._captured.remove(captured)
        self._done(self._cuda.cudaGraphExecDestroy(captured))

    def _made(self, answer: Any) -> Any:
        status, made = _pair(answer)
        self._check(status)
        return made

    def _done(self, answer: Any) -> None:
        self._check(answer[0])

    def _check(self, status: Any) -> None:
        if int(status):
            raise RunError(f"CUDA: {_said(self._cuda, status)}")


def _give_back(cuda: Cuda, owned: set[int], captured: list[Handle], stream: Handle) -> None:
    """Give all back, when nobody has the device any more; what CUDA says of it helps nobody."""
    cuda.cudaStreamSynchronize(stream)
    for work in captured:
        cuda.cudaGraphExecDestroy(work)
    for address in owned:
        cuda.cudaFree(address)
    cuda.cudaStreamDestroy(stream)


def require_gpu(cuda: Cuda) -> None:
    """Raise RunError where CUDA finds no GPU, or no driver."""
    status, count = _pair(cuda.cudaGetDeviceCount())
    if int(status) or not count:
        why = f" ({_said(cuda, status)})" if int(status) else ""
        raise RunError(
            f"backend tensorrt: it needs an NVIDIA GPU and its driver, and CUDA finds none{why}; run it where there is "
            "one, or run another program of the artifact (--backend)"
        )


def _said(cuda: Cuda, status: Any) -> str:
    """The name of a status, and what it means."""
    parts = (_pair(call(status))[1] for call in (cuda.cudaGetErrorName, cuda.cudaGetErrorString))
    return ": ".join(part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in parts)


def _pair(answer: Any) -> tuple[Any, Any]:
    """A status, and what came with it."""
    status, made = answer
    return status, made
