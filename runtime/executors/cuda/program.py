"""What a program for CUDA is in the artifact: machine code of kernels, and functions as lists of launches."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller

CONVENTION = ("pyc-cuda", "3")
"""Name and version of what programs expect of their executor: a program records it among its `abi`."""

WAITING_CAPABILITY = (9, 0)
"""The least compute capability at which a kernel may wait for earlier launches."""

ZEROED_BYTES = 4096
"""The first bytes of the workspace: zeros before each function, and behind it. Blocks that share a result count there
which is the last."""

Count = Annotated[int, Meta(ge=0, le=1 << 46)]
Index = Annotated[int, Meta(ge=0, le=1 << 20)]
Extent = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
Kind = Literal["input", "cache", "weight", "workspace", "result", "logits", "counts"]


class Kernel(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A kernel of the code `unit`: blocks of `threads` threads with `shared_bytes` of dynamic shared memory."""

    symbol: str
    unit: Index
    threads: Annotated[int, Meta(ge=32, le=1024)]
    shared_bytes: Annotated[int, Meta(ge=0, le=1 << 20)]
    parameters: Annotated[int, Meta(ge=1, le=16)]


class Buffer(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Memory that kernels are given: `size_bytes` from `offset` of the workspace, or all of what is called `name`.

    A cache is that of the layer `name`, whose size is the executor's matter: `size_bytes` are those of a block.
    Samplers read "logits", the result of the function before, and "counts" i32 [sequences, vocab], how often each
    sequence has each token (`TokenCounts`).
    """

    kind: Kind
    name: str
    offset: Count
    size_bytes: Count


class Launch(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A launch of a kernel over buffers, `after` the launches of these numbers, which are lower than its own.

    None of them is `after` another of them, directly or through others.
    """

    kernel: Index
    grid: tuple[Extent, Extent, Extent]
    buffers: Annotated[tuple[Index, ...], Meta(max_length=16)]
    after: tuple[Index, ...]


class InputArray(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What a caller hands over, or gets."""

    name: str
    dtype: Literal["f32", "i32", "f64"]
    shape: tuple[Extent, ...]


class DeviceFunction(Struct, frozen=True, forbid_unknown_fields=True):
    """A function at one number of rows; `symbol` is that of the header."""

    symbol: str
    inputs: tuple[InputArray, ...]
    result: InputArray
    workspace_bytes: Count
    buffers: tuple[Buffer, ...]
    launches: tuple[Launch, ...]


class TokenSampler(Struct, frozen=True, forbid_unknown_fields=True):
    """Chooses tokens i32 [rows] of logits f32 [rows, vocab]: -1 where the largest is not finite.

    `likeliest` has no inputs. `drawn` has settings f32 [rows, 8] (`executors.cuda.sampler`), numbers f64 [rows] of
    [0, 1), and sequences i32 [rows], which are those of "counts", and negative for a row that gets no token.
    """

    rows: Extent
    likeliest: DeviceFunction
    drawn: DeviceFunction


class CudaProgram(Struct, frozen=True, forbid_unknown_fields=True):
    """Kernels and functions. `code` are cubins of the variant, or texts of PTX, which end in a zero byte."""

    code: tuple[bytes, ...]
    kernels: tuple[Kernel, ...]
    functions: tuple[DeviceFunction, ...]
    cache_block_bytes: Count = 0
    """Bytes of a block of one layer's cache."""
    samplers: tuple[TokenSampler, ...] = ()
    """For numbers of rows of "logits"."""
    kernels_wait: bool = False
    """Whether every thread of every kernel waits for the launch before its own (griddepcontrol.wait), so that a launch
    may begin before that one has ended."""

    @property
    def every_function(self) -> tuple[DeviceFunction, ...]:
        """Functions, and those of samplers."""
        return (*self.functions, *(f for sampler in self.samplers for f in (sampler.likeliest, sampler.drawn)))


def encode_program(program: CudaProgram) -> bytes:
    """Return a program as it lies in the artifact."""
    return msgspec.msgpack.encode(program)


def decode_program(data: bytes) -> CudaProgram:
    """Return the program, every number in it within bounds; raises ArtifactError."""
    try:
        program = msgspec.msgpack.decode(data, type=CudaProgram)
    except (ValueError, RecursionError) as error:
        refuse_deep_caller(error)
        raise ArtifactError(f"the program for CUDA is not valid: {str(error)[:200]}") from error
    for kernel in program.kernels:
        if kernel.unit >= len(program.code):
            raise _invalid(f"kernel {kernel.symbol[:100]!a} is of unit {kernel.unit} of {len(program.code)}")
    for function in program.every_function:
        _check(function, program)
    return program


def _check(function: DeviceFunction, program: CudaProgram) -> None:
    where = f"function {function.symbol[:100]!a}"
    for buffer in function.buffers:
        if buffer.kind == "workspace" and buffer.offset + buffer.size_bytes > function.workspace_bytes:
            raise _invalid(f"{where}: a buffer ends behind the workspace of {function.workspace_bytes} bytes")
    for number, launch in enumerate(function.launches):
        if launch.kernel >= len(program.kernels):
            raise _invalid(f"{where}: launch {number} is of kernel {launch.kernel} of {len(program.kernels)}")
        if any(index >= len(function.buffers) for index in launch.buffers):
            raise _invalid(f"{where}: launch {number} reads a buffer that there is not")
        if any(before >= number for before in launch.after):
            raise _invalid(f"{where}: launch {number} waits for a later one")
        if len(launch.buffers) != program.kernels[launch.kernel].parameters:
            raise _invalid(f"{where}: launch {number} gives {len(launch.buffers)} buffers to a kernel of others")


def _invalid(what: str) -> ArtifactError:
    return ArtifactError(f"the program for CUDA is not valid: {what}")
