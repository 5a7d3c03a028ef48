"""A stand-in for cuda.bindings.runtime, and a machine with a GPU that it works on; see `tensorrt_double`.

Signatures and results are those of the docstrings of cuda-bindings 13.5. Work that is put into a stream is done when
that is waited for, memory of the device is of NaN until it is written, and what reaches out of an allocation is an
error: so the double finds what works on a GPU by luck.
"""
# ruff: noqa: N801, N802, N815

import ctypes
import enum
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np


def module_of(name):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # torch asks for it
    return module


def of_type(value, kind, what):
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{what}: incompatible argument {type(value).__name__}, expected {kind.__name__}")
    return value


class Machine:
    """One GPU with its streams and memory, what was called, and what TensorRT and CUDA make of it."""

    def __init__(self):
        self.calls = []
        self.devices, self.gpu, self.capability, self.driver = 1, "Double GPU", (9, 0), 13000
        self.memory, self.memory_bytes = {}, 8 << 30
        self.streams, self.graphs = {}, {}
        self.handles = 1
        self.cuda = cuda_of(self)

    def count(self, name):
        return sum(1 for called in self.calls if called == name)

    def handle(self):
        self.handles += 1
        return self.handles

    def find(self, address, size):
        """The bytes at an address of the device, which have to be of one allocation."""
        for base, buffer in self.memory.items():
            if base <= address < base + len(buffer):
                assert address + size <= base + len(buffer), f"{size} bytes at {address:#x} leave their allocation"
                return buffer[address - base : address - base + size]
        raise AssertionError(f"{address:#x} is no memory of the device")

    def submit(self, stream, work):
        state = self.streams[stream]
        (state.queue if state.capture is None else state.capture).append(work)

    def drain(self):
        for state in self.streams.values():
            queue, state.queue = state.queue, []
            for work in queue:
                work()


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100


class cudaMemcpyKind(enum.IntEnum):
    cudaMemcpyHostToHost = 0
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3
    cudaMemcpyDefault = 4


class cudaStreamCaptureMode(enum.IntEnum):
    cudaStreamCaptureModeGlobal = 0
    cudaStreamCaptureModeThreadLocal = 1
    cudaStreamCaptureModeRelaxed = 2


class Handle:
    def __init__(self, number):
        self._number = number

    def __int__(self):
        return self._number


class cudaStream_t(Handle):
    pass


class cudaGraph_t(Handle):
    pass


class cudaGraphExec_t(Handle):
    pass


def host(address, size):
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def cuda_of(machine):
    done = (cudaError_t.cudaSuccess,)
    kinds = cudaMemcpyKind

    def cudaGetErrorName(error):
        return (*done, of_type(error, cudaError_t, "error").name.encode())

    def cudaGetErrorString(error):
        return (*done, f"in words: {of_type(error, cudaError_t, 'error').name}".encode())

    def cudaGetDeviceCount():
        if machine.driver == 0:
            return cudaError_t.cudaErrorInsufficientDriver, None
        return (*done, machine.devices)

    def cudaGetDevice():
        return (*done, 0)

    def cudaGetDeviceProperties(device):
        assert of_type(device, int, "device") == 0
        major, minor = machine.capability
        name = machine.gpu.encode()
        return (*done, SimpleNamespace(name=name, major=major, minor=minor, totalGlobalMem=machine.memory_bytes))

    def cudaDriverGetVersion():
        return (*done, machine.driver)

    def cudaMalloc(size):
        taken = sum(len(buffer) for buffer in machine.memory.values())
        if taken + of_type(size, int, "size") > machine.memory_bytes:
            return cudaError_t.cudaErrorMemoryAllocation, None
        assert size > 0
        end = max((base + len(buffer) for base, buffer in machine.memory.items()), default=0x7F0000000000)
        base = (end + 0x10000) & ~0xFF
        machine.memory[base] = np.full(size, 0xFF, np.uint8)
        return (*done, base)

    def cudaFree(devPtr):
        machine.drain()
        machine.memory.pop(of_type(devPtr, int, "devPtr"))
        return done

    def number(stream):
        found = int(of_type(stream, cudaStream_t, "stream"))
        assert found in machine.streams, "the stream is not there any more"
        return found

    def cudaMemsetAsync(devPtr, value, count, stream):
        data = machine.find(of_type(devPtr, int, "devPtr"), of_type(count, int, "count"))
        machine.submit(number(stream), lambda: data.fill(of_type(value, int, "value")))
        return done

    def cudaMemcpyAsync(dst, src, count, kind, stream):
        return cudaMemcpy2DAsync(dst, count, src, count, count, 1, kind, stream)

    def cudaMemcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, stream):
        for value in (dst, dpitch, src, spitch, width, height):
            of_type(value, int, "an argument")
        of_type(kind, kinds, "kind")
        if max(dpitch, spitch) > 2**31 - 1 and height > 1:
            return (cudaError_t.cudaErrorInvalidValue,)
        assert width <= min(dpitch, spitch)
        target = host if kind == kinds.cudaMemcpyDeviceToHost else machine.find
        source = host if kind == kinds.cudaMemcpyHostToDevice else machine.find
        assert kind in (1, 2, 3)

        def copy():
            for row in range(height):
                target(dst + row * dpitch, width)[:] = source(src + row * spitch, width)

        for row in (0, height - 1):  # wrong addresses are told where they are given
            target(dst + row * dpitch, width), source(src + row * spitch, width)
        machine.submit(number(stream), copy)
        return done

    def cudaStreamCreateWithFlags(flags):
        assert of_type(flags, int, "flags") == 1
        stream = machine.handle()
        machine.streams[stream] = SimpleNamespace(queue=[], capture=None)
        return (*done, cudaStream_t(stream))

    def cudaStreamDestroy(stream):
        del machine.streams[number(stream)]
        return done

    def cudaStreamSynchronize(stream):
        assert machine.streams[number(stream)].capture is None, "a stream that captures cannot be waited for"
        machine.drain()
        return done

    def cudaStreamBeginCapture(stream, mode):
        of_type(mode, cudaStreamCaptureMode, "mode")
        state = machine.streams[number(stream)]
        assert state.capture is None
        machine.calls.append("cudaStreamBeginCapture")
        state.capture = []
        return done

    def cudaStreamEndCapture(stream):
        state = machine.streams[number(stream)]
        graph = machine.handle()
        machine.graphs[graph], state.capture = state.capture, None
        return (*done, cudaGraph_t(graph))

    def cudaGraphInstantiate(graph, flags):
        assert of_type(flags, int, "flags") == 0
        made = machine.handle()
        machine.graphs[made] = machine.graphs[int(of_type(graph, cudaGraph_t, "graph"))]
        return (*done, cudaGraphExec_t(made))

    def cudaGraphLaunch(graphExec, stream):
        machine.calls.append("cudaGraphLaunch")
        for work in machine.graphs[int(of_type(graphExec, cudaGraphExec_t, "graphExec"))]:
            machine.submit(number(stream), work)
        return done

    def cudaGraphDestroy(graph):
        del machine.graphs[int(of_type(graph, cudaGraph_t, "graph"))]
        return done

    def cudaGraphExecDestroy(graphExec):
        del machine.graphs[int(of_type(graphExec, cudaGraphExec_t, "graphExec"))]
        return done

    module = module_of("cuda.bindings.runtime")
    module.cudaStreamNonBlocking = 1
    for kind in (cudaError_t, cudaMemcpyKind, cudaStreamCaptureMode, cudaStream_t):
        setattr(module, kind.__name__, kind)
    for name, value in locals().copy().items():
        if name.startswith("cuda") and callable(value):
            setattr(module, name, value)
    return module
