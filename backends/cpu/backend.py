"""The backend for CPUs: its passes, its weights, and a lowered module to one shared library an instruction set.

TIR kernels come from TVM's LLVM; C kernels, the functions that call all of them, and their threads from zig, which
links them. Nothing of it needs a system compiler, and no byte depends on the directory it ran in. A library needs the C
library and nothing else: TVM stays with the build.
"""

from __future__ import annotations

import importlib.metadata
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pyc.backends.cpu.constants import CACHE_BLOCK_TOKENS
from pyc.backends.cpu.emit.call_source import compile_calls
from pyc.backends.cpu.emit.operands import weight_types
from pyc.backends.cpu.isa import GemmStrategy, Isa, find_isa, oldest_isa
from pyc.backends.cpu.kernels.translation_units import TranslationUnit, compile_unit, units_of
from pyc.backends.cpu.operators import ALL_OPERATORS, CPU_OPERATORS, rounds_attention
from pyc.backends.cpu.panel_packer import PanelPacker
from pyc.backends.cpu.passes.fuse_add_norm import FuseAddNorm
from pyc.backends.cpu.passes.fuse_attention_quantize import FuseAttentionQuantize
from pyc.backends.cpu.passes.fuse_linear_append import FuseLinearAppend
from pyc.backends.cpu.passes.fuse_linear_gated import FuseLinearGated
from pyc.backends.cpu.passes.fuse_quantize import FuseQuantize
from pyc.backends.cpu.passes.lower_activations import LowerActivations
from pyc.backends.cpu.passes.lower_layout import LowerLayout
from pyc.backends.cpu.passes.split_activations import SplitActivations
from pyc.backends.cpu.storage import pieces, stored_tensor
from pyc.backends.cpu.tir.imports import import_tvm
from pyc.backends.cpu.toolchain.description import compile_description
from pyc.backends.cpu.toolchain.objects import CachedObjects
from pyc.backends.cpu.toolchain.thread_pool import compile_thread_pool
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.backends.lowering.fuse_gate_up import FuseGateUp
from pyc.backends.lowering.lower_attention import LowerAttention
from pyc.backends.lowering.specialize_prefill import SpecializePrefill
from pyc.backends.protocol import Buckets, CompiledProgram, Memory
from pyc.backends.sources_digest import sources_digest
from pyc.compiler.awaited import Awaited, Workers
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Pass
from pyc.compiler.operators import Operator
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor
from pyc.compiler.weights import Expression
from pyc.runtime.artifact.format import Function, Tool
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.cpu.description import describe_program
from pyc.runtime.executors.cpu.threads import default_threads
from pyc.runtime.executors.protocol import STEP_CONVENTION
from pyc.runtime.host.cache_folder import cache_directory
from pyc.runtime.host.memory_file import memory_file

if TYPE_CHECKING:
    from tvm import tirx

    from pyc.backends.cpu.emit.kernel_set import KernelSet
    from pyc.backends.cpu.emit.program import ProgramBuilder

LEAST_FILE_BYTES = 4 << 20
"""LLVM writes an object of kernels as one file, even in memory, and ends the process where it may not grow."""
KERNEL_PREFIX = "__tvm_ffi_"
"""What TVM puts before the name of a TIR kernel."""

Host = tuple[str, str, tuple[str, ...]]
"""What LLVM compiles for: triple, CPU, attributes."""
_Part = tuple[Host, GemmStrategy, bool]
"""TIR kernels that LLVM compiles together: those of a GEMM strategy that call C kernels, or the others."""


class CpuBackend:
    """Compiles for CPUs through TVM, and with a C compiler and linker."""

    name: ClassVar[str] = "cpu"
    operators: ClassVar[Mapping[str, Operator]] = CPU_OPERATORS
    cache_block_tokens: ClassVar[int] = CACHE_BLOCK_TOKENS
    suffix: ClassVar[str] = ".so"
    memory: ClassVar[Memory] = Memory(build_bytes=220_000_000, compilers_bytes=120_000_000, run_bytes=0)
    """TVM, LLVM and their copies of a program (measured: 215 to 225 MB); what compiles and links C (80 to 230 MB)."""

    def __init__(self, cache: Cache | None = None, toolchain: Toolchain | None = None) -> None:
        """Compilers and packers keep what they make in `cache` (without one, in the user's)."""
        cache = cache or Cache(cache_directory())
        self._toolchain = toolchain or Toolchain(cache.directory)
        self._objects = CachedObjects(self._toolchain, cache)
        self._packer = PanelPacker(cache)

    def held_bytes(self, weight: StoredTensor) -> int:
        """None: kernels read the artifact's bytes where they are mapped."""
        return 0

    def passes(self) -> tuple[Pass, ...]:
        """The passes that turn logical operators into those that have kernels, in order.

        The last four write versions of functions (`versions`); one for whole groups begins with that for any rows.
        """
        lower = FuseGateUp(), LowerAttention(), LowerActivations(), LowerLayout(), SpecializePrefill(ALL_OPERATORS)
        fuse = FuseQuantize(), FuseAddNorm(), FuseLinearAppend(), FuseLinearGated(), FuseAttentionQuantize()
        return (*lower, *fuse, SplitActivations())

    def stored(self, expression: Expression) -> StoredTensor:
        """What a weight is in the artifact; raises QuantizeError."""
        return stored_tensor(expression)

    def pieces(self, expression: Expression, files: SourceFiles, span: Span = WHOLE) -> Iterator[Piece]:
        """The tasks that make its bytes; matrices are packed by compiled code where there is some."""
        return pieces(expression, files, self._packer, span)

    def fastest_first(self, isas: tuple[str, ...]) -> tuple[str, ...]:
        """The instruction sets, the fastest first; raises LowerError."""
        return tuple(sorted(isas, key=lambda name: find_isa(name).rank, reverse=True))

    def sources_digest(self) -> str:
        """What stands for kernels, code generators and layouts."""
        return sources_digest("pyc.templates.cpu", "pyc.backends.cpu", "pyc.backends.lowering", "pyc.compiler")

    def stop(self) -> None:
        """Kill the compilers that run; TVM, which works in this process, ends behind what it is at."""
        self._toolchain.stop()

    def close(self) -> None:
        """Remove what only this build's compilers used."""
        self._toolchain.close()

    def check(self, module: Module, buckets: Buckets) -> None:
        """Whatever its passes leave has kernels."""

    def compile(self, module: Module, buckets: Buckets, isas: tuple[str, ...]) -> Iterator[CompiledProgram]:
        """Yield the program of `module` for each of `isas`; LowerError when a compiler refuses.

        TIR kernels, lists of calls and the list of C kernels are made once for each GEMM strategy. zig compiles
        the C kernels while TVM works, once where instruction sets have the same code (`translation_units`). Those that
        are one target to LLVM share what it makes, and all of an architecture the callers of C kernels.
        """
        toolchain, compiler = self._toolchain, self._objects
        targets = [find_isa(isa) for isa in isas]
        if not targets:
            return
        going_on = toolchain.processes.require_going_on
        builder, functions = _program(module, buckets, {isa.gemm_strategy for isa in targets}, going_on)
        units = {isa: _translation_units(builder, isa) for isa in targets}
        pool = Workers(default_threads(), "pyc-cc")
        parts = {isa: _parts(builder, isa) for isa in targets}
        hosts: dict[_Part, bytes] = {}
        try:
            compiled = dict.fromkeys(unit for isa in targets for unit in units[isa])
            kernels = {unit: Awaited(pool, partial(compile_unit, unit, compiler)) for unit in compiled}
            lists = {
                (arch, strategy): Awaited(
                    pool, partial(compile_calls, variant.functions, KERNEL_PREFIX, arch, compiler)
                )
                for strategy, variant in builder.variants.items()
                for arch in sorted({isa.arch for isa in targets if isa.gemm_strategy == strategy})
            }
            archs = sorted({isa.arch for isa in targets})
            thread_pools = {arch: Awaited(pool, partial(compile_thread_pool, arch, compiler)) for arch in archs}
            descriptions = {
                isa: Awaited(pool, partial(compile_description, _described(module, isa, functions), isa, toolchain))
                for isa in targets
            }
            for isa in targets:  # all of them before the first wait for zig
                for part, compiled_for in parts[isa].items():
                    going_on()
                    if part not in hosts:
                        hosts[part] = _host_object(_kernels_of(builder, part), compiled_for)
            for isa in targets:
                own = [hosts[part] for part in parts[isa]]
                lists_of, threads = lists[isa.arch, isa.gemm_strategy], thread_pools[isa.arch]
                made = [*(kernels[unit] for unit in units[isa]), lists_of, threads, descriptions[isa]]
                objects = (*own, *(awaited.result() for awaited in made))
                library = toolchain.link_shared(objects, isa, f"pyc-{isa.name}.so")
                yield CompiledProgram(isa.name, isa.arch, isa.features, library, functions)
        finally:
            pool.shutdown(cancel_futures=True)  # a caller that takes no more waits for no compiler not yet started

    def cache_values(self, module: Module, isa: str) -> str:
        """What the cache holds: bf16 in place of f16 where the instruction set has it and every matmul rounds."""
        assert module.info.kv_cache is not None
        dtype = module.info.kv_cache.dtype
        kinds = {operation.kind for operation in module.graph.function("forward").operations}
        is_rounded = rounds_attention(kinds) and "avx512_bf16" in find_isa(isa).features
        return "bf16" if dtype == "f16" and is_rounded else dtype

    def tools(self) -> tuple[Tool, ...]:
        """TVM, zig, and the convention by which the runtime calls what they make."""
        names = ("apache-tvm", "ziglang")
        installed = tuple(Tool(name=name, version=importlib.metadata.version(name)) for name in names)
        return (*installed, Tool(*STEP_CONVENTION))


def _variants(builder: ProgramBuilder, isa: Isa) -> dict[GemmStrategy, KernelSet]:
    """Return the sets of kernels of a library, those that are empty left out."""
    sets = {strategy: builder.variants[strategy].kernels for strategy in ("simd", isa.gemm_strategy)}
    return {strategy: kernels for strategy, kernels in sets.items() if kernels.tir}


def _translation_units(builder: ProgramBuilder, isa: Isa) -> tuple[TranslationUnit, ...]:
    """Return the C kernels of a library."""
    return units_of(tuple(spec for kernels in _variants(builder, isa).values() for spec in kernels.c.values()), isa)


def _program(
    module: Module, buckets: Buckets, strategies: set[GemmStrategy], going_on: Callable[[], None]
) -> tuple[ProgramBuilder, tuple[Function, ...]]:
    """Return the functions of `module` with the kernels that they call, and its entry points."""
    import_tvm()  # 2 s and 300 MB: only when something is compiled
    from pyc.backends.cpu.emit.program import ProgramBuilder

    own = tuple(sorted(strategies - {"simd"}))
    builder = ProgramBuilder(module.info, module.graph, weight_types(module.weights), own)
    functions: list[Function] = []
    for function in module.graph.functions:
        for rows in buckets.of(function.name):
            going_on()
            symbol = f"{function.name}_{rows}"
            inputs, weights = builder.add_function(function, rows, symbol)
            functions.append(Function(function.name, tokens=rows, symbol=symbol, inputs=inputs, weights=weights))
    return builder, tuple(functions)


def _described(module: Module, isa: Isa, functions: tuple[Function, ...]) -> bytes:
    """Return what a library says that it was compiled for."""
    tensors = {name: (weight.dtype, weight.shape) for name, weight in weight_types(module.weights).items()}
    return describe_program(module.info, (isa.arch, isa.name, isa.features), functions, tensors)


def _parts(builder: ProgramBuilder, isa: Isa) -> dict[_Part, Isa]:
    """Return the parts of a library that LLVM compiles, each with the instruction set it is compiled for."""
    targets = {False: isa, True: oldest_isa(isa.arch)}
    return {
        (_host(target), strategy, callers): target
        for strategy, kernels in _variants(builder, isa).items()
        for callers, target in targets.items()
        if any((name in kernels.callers) == callers for name in kernels.tir)
    }


def _kernels_of(builder: ProgramBuilder, part: _Part) -> dict[str, tirx.PrimFunc]:
    _, strategy, callers = part
    kernels = builder.variants[strategy].kernels
    return {name: kernel for name, kernel in kernels.tir.items() if (name in kernels.callers) == callers}


def _host(isa: Isa) -> Host:
    return isa.llvm_triple, isa.llvm_cpu, isa.llvm_attributes


def _host_object(kernels: Mapping[str, tirx.PrimFunc], isa: Isa) -> bytes:
    """Return the object of TIR kernels."""
    import tvm

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < LEAST_FILE_BYTES:
        raise LowerError(
            f"files of this process may have {limit} bytes, expected at least {LEAST_FILE_BYTES}; "
            "raise the limit (ulimit -f)"
        )
    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": isa.llvm_triple, "mcpu": isa.llvm_cpu, "mattr": list(isa.llvm_attributes)}
    )
    try:
        # The executor checks what it is given; what a function then gives its kernels was planned, and is not checked.
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            compiled = tvm.tirx.build(tvm.IRModule(dict(kernels)), target)
        # No file on a disk: LLVM ends the process when one is full, and where a file may not grow as far.
        with os.fdopen(memory_file("kernels.o"), "rb") as file:
            compiled.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
            return file.read()
    except (RuntimeError, ValueError, TypeError) as error:  # what errors of TVM are
        lines = str(error).strip().splitlines()
        raise LowerError(f"tvm: {isa.name}: {lines[-1] if lines else error}") from error
