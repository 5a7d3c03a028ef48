"""Where all that a function's launches touch lies: its inputs and result, on both sides, and what functions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cuda.device import Device
from pyc.runtime.executors.cuda.program import Buffer, DeviceFunction, InputArray
from pyc.runtime.host.rounding import round_up

_ALIGNMENT_BYTES = 256
_DTYPES: dict[str, np.dtype[np.float32] | np.dtype[np.int32] | np.dtype[np.float64]] = {
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "f64": np.dtype(np.float64),
}

AnyArray = NDArray[np.float32] | NDArray[np.int32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Addresses of what functions have in common; `counts` are those of samplers."""

    weights: Mapping[str, int]
    caches: Mapping[str, int]
    workspace: int
    counts: int


class FunctionMemory:
    """The inputs and the result of a function, which stay where they are."""

    def __init__(self, device: Device, function: DeviceFunction) -> None:
        """Raises RunError for lack of memory."""
        self.function, self._device = function, device
        self._places: dict[str, int] = {}
        size = 0
        for given in function.inputs:
            self._places[given.name] = size
            size += round_up(size_bytes(given), _ALIGNMENT_BYTES)
        self._size, self._given = size, device.allocate(size, f"the inputs of {function.symbol}")
        self._host = device.pinned(size)
        self.inputs = {
            given.name: self._host[self._places[given.name] :][: size_bytes(given)]
            .view(_DTYPES[given.dtype])
            .reshape(given.shape)
            for given in function.inputs
        }
        """What `upload` copies to the device."""
        result_bytes = size_bytes(function.result)
        self.result_address = device.allocate(result_bytes, f"the result of {function.symbol}")
        dtype = _DTYPES[function.result.dtype]
        self.arrived = device.pinned(result_bytes).view(dtype).reshape(function.result.shape)
        """The result, or the rows of it that were downloaded."""

    def addresses(
        self, shared: SharedMemory, given: Mapping[str, int] | None = None, logits: int = 0
    ) -> dict[Buffer, int]:
        """Return where the function's buffers lie; inputs that are `given` lie elsewhere. Raises ArtifactError for one
        that there is not."""
        inputs = {name: self._given + place for name, place in self._places.items()} | dict(given or {})
        found: dict[Buffer, int] = {}
        for buffer in self.function.buffers:
            match buffer.kind:
                case "input":
                    found[buffer] = self._known(inputs, buffer)
                case "weight":
                    found[buffer] = self._known(shared.weights, buffer)
                case "cache":
                    found[buffer] = self._known(shared.caches, buffer)
                case "workspace":
                    found[buffer] = shared.workspace + buffer.offset
                case "result":
                    found[buffer] = self.result_address
                case "logits":
                    found[buffer] = logits
                case "counts":
                    found[buffer] = shared.counts
        return found

    def put(self, inputs: Mapping[str, AnyArray]) -> None:
        """Copy inputs to the device. Raises RunError for those of another dtype or shape."""
        for name, place in self.inputs.items():
            array = inputs[name]
            if array.dtype != place.dtype or array.shape != place.shape:
                got, expected = (f"{each.dtype} {list(each.shape)}" for each in (array, place))
                raise RunError(f"{self.function.symbol}: {name}: got {got}, expected {expected}")
            place[...] = array
        self.upload()

    def upload(self) -> None:
        """Copy `inputs` to the device."""
        self._device.upload(self._host.ctypes.data, self._given, self._size)

    def download(self) -> None:
        """Copy the result to `arrived`, which has it after `Device.wait`."""
        self._device.download(self.result_address, self.arrived.ctypes.data, self.arrived.nbytes)

    def download_row(self, row: int) -> None:
        """Copy one row of the result."""
        place = self.arrived[row]
        self._device.download(self.result_address + row * place.nbytes, place.ctypes.data, place.nbytes)

    def _known(self, places: Mapping[str, int], buffer: Buffer) -> int:
        if buffer.name not in places:
            raise ArtifactError(
                f"{self.function.symbol}: the program for CUDA reads {buffer.name[:100]!a}, which there is not"
            )
        return places[buffer.name]


def size_bytes(array: InputArray) -> int:
    """Return the bytes of an input or a result."""
    return prod(array.shape) * _DTYPES[array.dtype].itemsize
