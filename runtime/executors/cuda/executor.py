"""Executes a program for CUDA: weights in the GPU's memory, a paged cache, one graph a function and bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.format import Header, Program
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cuda.choice import best_program, programs_of
from pyc.runtime.executors.cuda.device import Device, find_gpu
from pyc.runtime.executors.cuda.driver import open_driver
from pyc.runtime.executors.cuda.function_memory import FunctionMemory, SharedMemory, size_bytes
from pyc.runtime.executors.cuda.graph import BoundFunctions, Kernels
from pyc.runtime.executors.cuda.kv_cache import block_bytes, packed_prefix
from pyc.runtime.executors.cuda.program import ZEROED_BYTES, CudaProgram, DeviceFunction, decode_program
from pyc.runtime.executors.cuda.sampler import CudaSampler, check_samplers, counts_bytes
from pyc.runtime.executors.cuda.weights import make_weights, upload_weights
from pyc.runtime.executors.prefix import read_prefix
from pyc.runtime.executors.protocol import ExecutorOptions, FloatArray, IntArray
from pyc.runtime.executors.protocol import InputArray as HostArray
from pyc.runtime.host.aligned import aligned_zeros


def choose_program(programs: tuple[Program, ...], isa: str | None) -> Program:
    """Return the program that this machine's GPU runs, or the one called `isa`; RunError says why there is none."""
    return best_program(programs_of(programs, isa), find_gpu(open_driver()))


class CudaExecutor:
    """Runs one program of an artifact. Not for use by several threads at once."""

    is_arriving = False

    def __init__(self, artifact: Artifact, options: ExecutorOptions) -> None:
        """Load the program, and copy the weights to the device, chunk by chunk as they are verified, or make random
        ones there.

        `kv_blocks` blocks of positions are reserved for the cache. Raises RunError (no GPU, a driver that is too old,
        no program for it, too little memory) and ArtifactError; the caller has checked trust.
        """
        driver = open_driver()
        gpu = find_gpu(driver)
        program = best_program(programs_of(artifact.header.programs, options.isa), gpu)
        device = self._device = Device(driver, gpu)
        self.isa, self.threads = program.isa, 1
        decoded = decode_program(artifact.blob(program.library))
        functions = functions_of(program, decoded, artifact.header)
        check_samplers(decoded, functions, artifact.header.model)
        names = list(dict.fromkeys(name for function in program.functions for name in function.weights))
        self._cache_bytes = _cache_bytes(artifact.header, decoded) * max(options.kv_blocks, 1)
        self._check_memory(artifact.header, names, decoded)
        kernels = Kernels(device, decoded)
        if options.random_weights is None:
            weights = upload_weights(device, artifact, names)
        else:
            weights = make_weights(device, artifact.header, names, options.random_weights)
        cache = artifact.header.model.kv_cache
        self._caches: dict[str, int] = {}
        for layer in range(cache.layers if cache else 0):
            self._caches[str(layer)] = device.allocate(self._cache_bytes, "the key/value cache of a layer")
            device.clear(self._caches[str(layer)], self._cache_bytes)
        workspace = device.allocate(_workspace_bytes(decoded), "the workspace")
        device.clear(workspace, min(_workspace_bytes(decoded), ZEROED_BYTES))
        counts = device.allocate(counts_bytes(decoded, artifact.header.model), "the counts of tokens")
        shared = SharedMemory(weights, self._caches, workspace, counts)
        memories = {key: FunctionMemory(device, function) for key, function in functions.items()}
        self._functions = {
            key: _CudaFunction(device, kernels, memory, shared) for key, memory in memories.items()
        }
        self.sampler = CudaSampler(device, kernels, memories, decoded, shared) if decoded.samplers else None
        self._prefix: NDArray[np.uint8] | None = None
        prefix = read_prefix(artifact, options.random_weights)
        if cache is not None and prefix is not None:
            self._prefix = packed_prefix(prefix, cache)
        device.wait()

    def _check_memory(self, header: Header, names: Iterable[str], program: CudaProgram) -> None:
        """Raise RunError, with what is needed, before anything is allocated that does not fit."""
        wanted = set(names)
        layers = header.model.kv_cache.layers if header.model.kv_cache else 0
        parts = {
            "weights": sum(tensor_bytes(t.dtype, t.shape) for t in header.tensors if t.name in wanted),
            "the cache": layers * self._cache_bytes,
            "intermediate values": _workspace_bytes(program) + counts_bytes(program, header.model),
            "inputs and results": sum(size_bytes(a) for f in program.every_function for a in (*f.inputs, f.result)),
        }
        free = self._device.free_bytes()
        if sum(parts.values()) > free:
            said = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
            raise RunError(
                f"CUDA: the model takes {sum(parts.values()) / 1e9:.2f} GB ({said}), and {self._device.name} has "
                f"{free / 1e9:.2f} of {self._device.memory_bytes / 1e9:.0f} GB free; load with a smaller context (pyc "
                "run --context), or end what else uses the GPU"
            )

    @property
    def read_bytes(self) -> int:
        """Bytes that were copied from the device to this process."""
        return self._device.read_bytes

    def functions(self, name: str) -> tuple[int, ...]:
        """Return the ascending bucket sizes of the function `name`; empty when there is none."""
        return tuple(sorted(rows for found, rows in self._functions if found == name))

    def write_prefix(self, sequence: int, blocks: IntArray) -> None:
        """Copy the virtual tokens into the first of `blocks`; see the protocol."""
        assert self._prefix is not None
        self._device.enter()
        size = self._prefix.shape[2]
        for layer, packed in enumerate(self._prefix):
            for block, content in zip(blocks, packed, strict=False):
                address = self._caches[str(layer)] + int(block) * size
                self._device.upload(content.ctypes.data, address, size)
        self._device.wait()

    def check_file(self) -> None:
        """Nothing is read from the file any more."""

    def wait(self) -> None:
        """Nothing: all weights were here when this was made."""

    def stop_arriving(self) -> None:
        """Nothing: all weights were here when this was made."""

    def run(self, name: str, bucket: int, inputs: Mapping[str, HostArray]) -> FloatArray:
        """Execute `name` at `bucket` rows; see the protocol. The result is valid until the next run of it."""
        self._device.enter()
        return self._functions[name, bucket].run(inputs)


class _CudaFunction:
    """A function over its memory."""

    def __init__(self, device: Device, kernels: Kernels, memory: FunctionMemory, shared: SharedMemory) -> None:
        self._device, self._memory = device, memory
        self._result = aligned_zeros(memory.function.result.shape, np.float32)  # a caller may have it longer than us
        self._bound = BoundFunctions(device, kernels, [(memory.function, memory.addresses(shared))])

    def run(self, inputs: Mapping[str, HostArray]) -> FloatArray:
        """Copy inputs to the device, launch the graph, and return the result. Raises RunError."""
        self._memory.put(inputs)
        self._bound.run()
        self._memory.download()
        self._device.wait()
        self._result[...] = self._memory.arrived
        return self._result


def functions_of(
    program: Program, decoded: CudaProgram, header: Header
) -> dict[tuple[str, int], DeviceFunction]:
    """Return the functions that a header names, by name and rows. Raises ArtifactError for one that is not there, or
    that reads or returns another thing than the header says."""
    by_symbol = {function.symbol: function for function in decoded.functions}
    sizes = {tensor.name: tensor_bytes(tensor.dtype, tensor.shape) for tensor in header.tensors}
    widths = {"logits": header.model.vocab_size}
    found: dict[tuple[str, int], DeviceFunction] = {}
    for function in program.functions:
        there = by_symbol.get(function.symbol)
        if there is None:
            raise ArtifactError(f"the program for CUDA has no function {function.symbol!r}, which its header names")
        read = {buffer.name: buffer.size_bytes for buffer in there.buffers if buffer.kind == "weight"}
        if read.keys() - set(function.weights) or tuple(i.name for i in there.inputs) != function.inputs:
            raise ArtifactError(f"{function.symbol}: the program for CUDA and its header differ in what it reads")
        other = next((name for name, size in read.items() if sizes.get(name) != size), None)
        if other is not None:
            raise ArtifactError(
                f"{other}: has {sizes.get(other, 0)} bytes, the program for CUDA reads {read[other]} of it"
            )
        width = widths.get(function.name, header.model.hidden_size)
        if len(there.result.shape) != 2 or there.result.shape[1] != width or there.result.dtype != "f32":
            raise ArtifactError(
                f"{function.symbol}: the program for CUDA returns {list(there.result.shape)}, expected rows of {width}"
            )
        found[function.name, function.tokens] = there
    return found


def _cache_bytes(header: Header, program: CudaProgram) -> int:
    """Return the bytes of a block of a layer's cache. Raises ArtifactError where the program counts otherwise."""
    cache = header.model.kv_cache
    expected = block_bytes(cache) if cache else 0
    if program.cache_block_bytes != expected:
        raise ArtifactError(
            f"the program for CUDA has cache blocks of {program.cache_block_bytes} bytes, the header of {expected}"
        )
    return expected


def _workspace_bytes(program: CudaProgram) -> int:
    """Return the bytes of intermediate values that functions share."""
    return max((function.workspace_bytes for function in program.every_function), default=0)
