"""TensorRT and CUDA as their documents have them, and as far as this executor uses them: types for the calls.

tensorrt: the Python bindings' source of TensorRT 11.1 (python/src/infer/pyCore.cpp, python/src/parsers/pyOnnx.cpp of
NVIDIA/TensorRT), which has every name from 10.13 on. cuda: the signatures of cuda.bindings.runtime 13.5. Both packages
are imported when they are used: they are not installed where pyc is built and tested.
"""
# ruff: noqa: A002, N802, N815

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, SupportsInt

Shape = tuple[int, ...]
Handle = Any
"""A stream or a graph of CUDA: a number inside, of a type of its own."""


class HostMemory(Protocol):
    """IHostMemory: bytes by the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Its bytes."""
        ...


class OptimizationProfile(Protocol):
    """IOptimizationProfile."""

    def set_shape(self, input: str, min: Shape, opt: Shape, max: Shape) -> None:
        """Raises RuntimeError for shapes that contradict each other."""
        ...


class TimingCache(Protocol):
    """ITimingCache."""

    def serialize(self) -> HostMemory:
        """Its bytes."""
        ...


class BuilderConfig(Protocol):
    """IBuilderConfig."""

    def clear_flag(self, flag: Any) -> None:
        """Takes a BuilderFlag away."""
        ...

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache | None:
        """A new one of b"", or one that was serialized."""
        ...

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        """False when it is of another device."""
        ...

    def add_optimization_profile(self, profile: OptimizationProfile) -> int:
        """Its index, or -1."""
        ...


class Network(Protocol):
    """INetworkDefinition."""


class ParserError(Protocol):
    """What was wrong with a node."""

    def desc(self) -> str:
        """In words."""
        ...

    def node_name(self) -> str:
        """Of the ONNX node."""
        ...

    def node_operator(self) -> str:
        """Of the ONNX node."""
        ...


class OnnxParser(Protocol):
    """OnnxParser."""

    @property
    def num_errors(self) -> int:
        """How many `get_error` has."""
        ...

    def get_error(self, index: int) -> ParserError:
        """One of them."""
        ...

    def load_model_proto(self, model: bytes) -> bool:
        """Take a serialized model, and convert nothing yet."""
        ...

    def load_initializer(self, name: str, data: int, size: int) -> bool:
        """Hand the bytes of an initializer over, which have to outlive the parser."""
        ...

    def parse_model_proto(self) -> bool:
        """Convert the model into the network."""
        ...


class Builder(Protocol):
    """Builder."""

    def create_network(self, flags: int) -> Network:
        """An empty one."""
        ...

    def create_builder_config(self) -> BuilderConfig:
        """One with defaults."""
        ...

    def create_optimization_profile(self) -> OptimizationProfile:
        """An empty one."""
        ...

    def build_serialized_network(self, network: Network, config: BuilderConfig) -> HostMemory | None:
        """The engine; None when it could not be built, and the logger was told why."""
        ...


class ExecutionContext(Protocol):
    """IExecutionContext."""

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """Raises RuntimeError when it cannot be set."""
        ...

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        """False for a shape outside the profile."""
        ...

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Where an input or output lies on the device."""
        ...

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Put the work into the stream."""
        ...


class CudaEngine(Protocol):
    """ICudaEngine."""

    @property
    def num_optimization_profiles(self) -> int:
        """How many it was built with."""
        ...

    def create_execution_context(self) -> ExecutionContext | None:
        """None when memory does not suffice."""
        ...


class Runtime(Protocol):
    """Runtime."""

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> CudaEngine | None:
        """None for what is no engine of this version and GPU."""
        ...


class TensorRt(Protocol):
    """The module tensorrt. `ILogger` is subclassed; enumerations are named where they are used."""

    __version__: str
    ILogger: Any
    NetworkDefinitionCreationFlag: Any
    BuilderFlag: Any

    def Builder(self, logger: Any) -> Builder:
        """Make one."""
        ...

    def OnnxParser(self, network: Network, logger: Any) -> OnnxParser:
        """Make one that writes into `network`."""
        ...

    def Runtime(self, logger: Any) -> Runtime:
        """Make one."""
        ...


Status = SupportsInt
"""A cudaError_t: every function of CUDA gives it, alone or before what it makes."""


class Cuda(Protocol):
    """The module cuda.bindings.runtime. What it gives is a tuple whose first is a Status."""

    cudaMemcpyKind: Any
    cudaStreamCaptureMode: Any
    cudaStreamNonBlocking: int

    def cudaGetErrorName(self, error: Status) -> Sequence[Any]: ...
    def cudaGetErrorString(self, error: Status) -> Sequence[Any]: ...
    def cudaGetDeviceCount(self) -> Sequence[Any]: ...
    def cudaGetDevice(self) -> Sequence[Any]: ...
    def cudaGetDeviceProperties(self, device: int) -> Sequence[Any]: ...
    def cudaDriverGetVersion(self) -> Sequence[Any]: ...
    def cudaMalloc(self, size: int) -> Sequence[Any]: ...
    def cudaFree(self, devPtr: int) -> Sequence[Any]: ...
    def cudaMemsetAsync(self, devPtr: int, value: int, count: int, stream: Handle) -> Sequence[Any]: ...
    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Handle) -> Sequence[Any]: ...
    def cudaMemcpy2DAsync(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: Any, stream: Handle
    ) -> Sequence[Any]: ...
    def cudaStreamCreateWithFlags(self, flags: int) -> Sequence[Any]: ...
    def cudaStreamDestroy(self, stream: Handle) -> Sequence[Any]: ...
    def cudaStreamSynchronize(self, stream: Handle) -> Sequence[Any]: ...
    def cudaStreamBeginCapture(self, stream: Handle, mode: Any) -> Sequence[Any]: ...
    def cudaStreamEndCapture(self, stream: Handle) -> Sequence[Any]: ...
    def cudaGraphInstantiate(self, graph: Handle, flags: int) -> Sequence[Any]: ...
    def cudaGraphLaunch(self, graphExec: Handle, stream: Handle) -> Sequence[Any]: ...
    def cudaGraphDestroy(self, graph: Handle) -> Sequence[Any]: ...
    def cudaGraphExecDestroy(self, graphExec: Handle) -> Sequence[Any]: ...
