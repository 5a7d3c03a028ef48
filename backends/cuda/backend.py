"""The backend for NVIDIA GPUs: functions as launches of kernels, which the runtime makes one CUDA graph each.

Kernels are CUDA C++ with every shape a constant in it, compiled by NVRTC, which needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar, Protocol

import msgspec

from pyc.backends.cuda.archs import find_arch
from pyc.backends.cuda.emit.launches import emit_launches, rows_of, symbol_of
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
from pyc.compiler.awaited import Workers
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Pass
from pyc.compiler.operators import Operator
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor
from pyc.compiler.weights import Expression
from pyc.runtime.artifact.format import Function, Tool
from pyc.runtime.executors.cpu.threads import default_threads
from pyc.runtime.executors.cuda.kv_cache import CACHE_BLOCK_TOKENS
from pyc.runtime.executors.cuda.program import CONVENTION, WAITING_CAPABILITY, encode_program


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
        self._is_stopped = False

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
        """Yield the program for each of `isas`: machine code of its own, launches as all that have the same matrix
        instructions."""
        if not isas:
            return
        weights = {name: self.stored(expression) for name, expression in module.weights.items()}
        launches = {
            has_warpgroups: emit_launches(module, buckets, weights, has_warpgroups=has_warpgroups)
            for has_warpgroups in {find_arch(isa).has_warpgroups for isa in isas}
        }
        functions = _functions(module, buckets)
        with Workers(default_threads(), "pyc-nvrtc") as pool:
            for isa in isas:
                emitted = launches[find_arch(isa).has_warpgroups]
                code = tuple(pool.map(partial(self._compiled, isa), emitted.sources))
                waits = find_arch(isa).compute_capability >= WAITING_CAPABILITY
                program = encode_program(msgspec.structs.replace(emitted.program, code=code, kernels_wait=waits))
                yield CompiledProgram(isa, "any", find_arch(isa).features, program, functions)

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

    def _compiled(self, isa: str, unit: tuple[str, ...]) -> bytes:
        if self._is_stopped:
            raise KeyboardInterrupt
        return self._compiler.compile(unit, isa)

    def stop(self) -> None:
        """No further unit is compiled; one takes a few seconds at most."""
        self._is_stopped = True

    def close(self) -> None:
        """Nothing was made."""


def _functions(module: Module, buckets: Buckets) -> tuple[Function, ...]:
    """Return what the header says of each function and bucket."""
    found: list[Function] = []
    for function in module.graph.functions:
        read = tuple(dict.fromkeys(name for o in function.operations for name in o.weights if name))
        inputs = tuple(parameter.name for parameter in function.parameters)
        for rows in rows_of(function.name, buckets, module.info):
            found.append(Function(function.name, rows, symbol_of(function.name, rows), inputs, read))
    return tuple(found)
