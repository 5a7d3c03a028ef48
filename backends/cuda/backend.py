"""The backend for NVIDIA GPUs: functions as launches of kernels, which the runtime makes one CUDA graph each.

Kernels are CUDA C++ with every shape a constant in it, compiled by NVRTC, which needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Protocol

from pyc.backends.cuda.archs import find_arch
from pyc.backends.cuda.emit.function import FunctionEmitter
from pyc.backends.cuda.emit.kernel_table import KernelTable
from pyc.backends.cuda.emit.sampling import emit_sampler
from pyc.backends.cuda.layouts import STORAGE
from pyc.backends.cuda.operators import ALL_OPERATORS, CUDA_OPERATORS
from pyc.backends.cuda.passes.fuse_add_norm import FuseAddNorm
from pyc.backends.cuda.passes.fuse_append_attention import FuseAppendAttention
from pyc.backends.cuda.passes.lower_matrices import LowerMatrices
from pyc.backends.cuda.toolchain.nvrtc import DISTRIBUTION, compile_kernels, version
from pyc.backends.lowering.fuse_gate_up import FuseGateUp
from pyc.backends.lowering.lower_attention import LowerAttention
from pyc.backends.lowering.specialize_prefill import SpecializePrefill
from pyc.backends.protocol import Buckets, CompiledProgram, Memory
from pyc.backends.sources_digest import sources_digest
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Pass
from pyc.compiler.operators import Operator
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor
from pyc.compiler.weights import Expression
from pyc.runtime.artifact.format import Function, ModelInfo, Tool
from pyc.runtime.executors.cpu.threads import default_threads
from pyc.runtime.executors.cuda.choice import device_features
from pyc.runtime.executors.cuda.kv_cache import CACHE_BLOCK_TOKENS, block_bytes
from pyc.runtime.executors.cuda.program import (
    CONVENTION,
    WAITING_CAPABILITY,
    CudaProgram,
    DeviceFunction,
    encode_program,
)


class KernelCompiler(Protocol):
    """Compiles kernels for an architecture."""

    def compile(self, sources: tuple[str, ...], arch: str) -> bytes:
        """Return a cubin, or PTX, of kernels that stand in `sources`; raises LowerError."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Return the compilers used, with versions; raises MissingExtraError."""
        ...


class Nvrtc:
    """NVIDIA's runtime compiler."""

    def compile(self, sources: tuple[str, ...], arch: str) -> bytes:
        """Return a cubin, or PTX; see the protocol."""
        return compile_kernels(sources, find_arch(arch))

    def tools(self) -> tuple[Tool, ...]:
        """Return its version; raises MissingExtraError."""
        return (Tool(DISTRIBUTION, version()),)


class CudaBackend:
    """Compiles for NVIDIA GPUs, without one."""

    name: ClassVar[str] = "cuda"
    operators: ClassVar[Mapping[str, Operator]] = CUDA_OPERATORS
    cache_block_tokens: ClassVar[int] = CACHE_BLOCK_TOKENS
    suffix: ClassVar[str] = ".launches"
    memory: ClassVar[Memory] = Memory(build_bytes=165_000_000, compilers_bytes=0, run_bytes=None)
    """NVRTC (measured: 150 to 170 MB). What a driver takes of the host's memory was measured nowhere."""

    def __init__(self, compiler: KernelCompiler | None = None) -> None:
        """Kernels are compiled by `compiler`; without one by NVRTC."""
        self._compiler: KernelCompiler = compiler or Nvrtc()

    def held_bytes(self, weight: StoredTensor) -> int:
        """None: weights go to the device through buffers."""
        return 0

    def passes(self) -> tuple[Pass, ...]:
        """The passes that turn logical operators into those that have kernels, in order."""
        return (
            FuseGateUp(),
            LowerAttention(),
            LowerMatrices(),
            SpecializePrefill(ALL_OPERATORS),
            FuseAppendAttention(),
            FuseAddNorm(),
        )

    def stored(self, expression: Expression) -> StoredTensor:
        """What a weight is in the artifact; raises QuantizeError."""
        return STORAGE.stored_tensor(expression)

    def pieces(self, expression: Expression, files: SourceFiles, span: Span = WHOLE) -> Iterator[Piece]:
        """The tasks that make its bytes."""
        return STORAGE.pieces(expression, files, span)

    def fastest_first(self, isas: tuple[str, ...]) -> tuple[str, ...]:
        """The architectures, the newest first, PTX last; raises LowerError."""
        archs = sorted(map(find_arch, isas), key=lambda arch: (not arch.is_ptx, arch.compute_capability), reverse=True)
        return tuple(arch.name for arch in archs)

    def check(self, module: Module, buckets: Buckets) -> None:
        """Whatever its passes leave has kernels."""

    def compile(self, module: Module, buckets: Buckets, isas: tuple[str, ...]) -> Iterator[CompiledProgram]:
        """Yield the program for each of `isas`: the same launches, other machine code."""
        if not isas:
            return
        weights = {name: self.stored(expression) for name, expression in module.weights.items()}
        cache = module.info.kv_cache
        cache_bytes = block_bytes(cache) if cache else 0
        table = KernelTable()
        emitted: list[DeviceFunction] = []
        functions: list[Function] = []
        for function in module.graph.functions:
            read = tuple(dict.fromkeys(name for o in function.operations for name in o.weights if name))
            inputs = tuple(parameter.name for parameter in function.parameters)
            for rows in _rows_of(function.name, buckets, module.info):
                symbol = f"{function.name}_{rows}"
                emitter = FunctionEmitter(function, rows, module.info, weights, table, cache_bytes)
                emitted.append(emitter.emit(symbol))
                functions.append(Function(function.name, rows, symbol, inputs, read))
        heads = [function.tokens for function in functions if function.name == "logits"]
        samplers = tuple(emit_sampler(rows, module.info, table) for rows in heads)
        every = CudaProgram((), (), tuple(emitted), samplers=samplers).every_function
        counts = {launch.kernel: len(launch.buffers) for each in every for launch in each.launches}
        records = table.records([counts[number] for number in range(len(table.kernels))])
        sources = [tuple(kernel.source for kernel in unit) for unit in table.units()]
        with ThreadPoolExecutor(default_threads(), thread_name_prefix="pyc-nvrtc") as pool:
            for isa in isas:
                code = tuple(pool.map(lambda unit, arch=isa: self._compiler.compile(unit, arch), sources))
                waits = find_arch(isa).compute_capability >= WAITING_CAPABILITY
                program = CudaProgram(code, records, tuple(emitted), cache_bytes, samplers, waits)
                yield CompiledProgram(isa, "any", _features(isa), encode_program(program), tuple(functions))

    def cache_values(self, module: Module, isa: str) -> str:
        """What the cache holds: what the header says."""
        assert module.info.kv_cache is not None
        return module.info.kv_cache.dtype

    def tools(self) -> tuple[Tool, ...]:
        """NVRTC, and the convention between launches and executor; MissingExtraError where it is not installed."""
        return (*self._compiler.tools(), Tool(*CONVENTION))

    def sources_digest(self) -> str:
        """What stands for kernels, code generators, and layouts, of which those for ONNX are some."""
        rooms = "pyc.backends.cuda", "pyc.backends.onnx", "pyc.backends.lowering"
        return sources_digest("pyc.templates.cuda", *rooms, "pyc.compiler")

    def stop(self) -> None:
        """Compilers are waited for: one unit takes a few seconds at most."""

    def close(self) -> None:
        """Nothing was made."""


def _rows_of(function: str, buckets: Buckets, info: ModelInfo) -> tuple[int, ...]:
    """Return the row counts of a function: of the head also those of a prompt's last row and of every step, so that
    tokens are chosen without the host."""
    rows = buckets.of(function)
    if function != "logits":
        return rows
    return tuple(sorted({1, *rows, *(count for count in buckets.tokens if count <= info.max_sequences)}))


def _features(name: str) -> tuple[str, ...]:
    """Return what a program for an architecture needs of the device, as `runtime.executors.cuda.choice` reads it."""
    arch = find_arch(name)
    major, minor = arch.compute_capability
    return device_features(major, minor, "ptx" if arch.is_ptx else "only" if arch.is_exact else "family")
