"""The TVM backend for CPUs: a lowered module to one shared library an instruction set.

TIR kernels and the Relax bytecode come from TVM's LLVM, the products from C kernels compiled by zig; zig links
both. Nothing of it needs a system compiler, and no byte depends on the directory it ran in.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pyc.backends.isa import Isa, find_isa
from pyc.backends.kernels import AnySpec, compile_kernels
from pyc.backends.protocol import Buckets, CompiledProgram
from pyc.backends.team import compile_team
from pyc.backends.toolchain import Toolchain
from pyc.backends.tvm.operands import weight_types
from pyc.compiler.cache import cache_directory
from pyc.compiler.ir import Module
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.ffi import import_without_torch
from pyc.runtime.executors.protocol import STEP_CONVENTION
from pyc.runtime.format import Function, Tool
from pyc.runtime.threads import default_threads

if TYPE_CHECKING:
    import tvm

RUNTIME_LIBRARY = "libtvm_runtime.so"
_ELF_MACHINES = {b"\x3e\x00": "x86_64", b"\xb7\x00": "aarch64"}

FunctionName = Literal["forward", "prompt", "logits", "embed"]
Host = tuple[str, str, tuple[str, ...]]
"""What LLVM compiles for: triple, CPU, attributes."""


class TvmCpuBackend:
    """Compiles for CPUs through TVM."""

    def compile(self, module: Module, buckets: Buckets, isas: tuple[str, ...]) -> Iterator[CompiledProgram]:
        """Yield the program of `module` for each of `isas`; LowerError when a compiler refuses.

        The Relax module and the list of C kernels do not depend on the instruction set: they are made once, and
        zig compiles the kernels of every instruction set while TVM works. Instruction sets that are one target to LLVM
        share what it makes.
        """
        toolchain = Toolchain(cache_directory())
        targets = [find_isa(isa) for isa in isas]
        if not targets:
            return
        relax_module, specs, functions = _relax(module, buckets)
        pool = ThreadPoolExecutor(min(len(targets), default_threads()), thread_name_prefix="pyc-cc")
        hosts: dict[Host, tuple[bytes, ...]] = {}
        try:
            kernels = [pool.submit(compile_kernels, specs, target, toolchain) for target in targets]
            arches = sorted({target.arch for target in targets})
            teams = {arch: pool.submit(compile_team, arch, toolchain) for arch in arches}
            for isa in targets:  # all of them before the first wait for zig
                if _host(isa) not in hosts:
                    hosts[_host(isa)] = _host_objects(relax_module, isa)
            for isa, kernel_object in zip(targets, kernels, strict=True):
                objects = (*hosts[_host(isa)], kernel_object.result(), teams[isa.arch].result())
                library = toolchain.link_shared(objects, isa, f"pyc-{isa.name}.so")
                yield CompiledProgram(isa.name, isa.arch, isa.features, library, functions)
        finally:
            pool.shutdown(cancel_futures=True)  # a caller that takes no more waits for no compiler not yet started

    def tools(self) -> tuple[Tool, ...]:
        """TVM, its calling convention and ours, and zig."""
        names = ("apache-tvm", "apache-tvm-ffi", "ziglang")
        installed = tuple(Tool(name=name, version=importlib.metadata.version(name)) for name in names)
        return (*installed, Tool(*STEP_CONVENTION))

    def runtime_files(self, arch: str) -> tuple[tuple[str, bytes], ...]:
        """The TVM runtime out of the installed wheel, with its licence; LowerError for another architecture."""
        distribution = importlib.metadata.distribution("apache-tvm")
        found: dict[str, bytes] = {}
        for file in distribution.files or ():
            if file.name in (RUNTIME_LIBRARY, "LICENSE", "NOTICE"):
                found.setdefault(file.name, Path(str(distribution.locate_file(file))).read_bytes())
        machine = _ELF_MACHINES.get(found.get(RUNTIME_LIBRARY, b"")[18:20])
        if machine is not None and machine != arch:
            raise LowerError(
                f"tvm: the installed apache-tvm carries the runtime of {machine}, the target is {arch}; "
                f"build on a machine of {arch}"
            )
        if RUNTIME_LIBRARY not in found:
            raise LowerError(
                f"tvm: the installed apache-tvm has no {RUNTIME_LIBRARY}; install apache-tvm 0.27 from PyPI"
            )
        licences = tuple((f"tvm/{name}", data) for name, data in sorted(found.items()) if name != RUNTIME_LIBRARY)
        return ((f"tvm/{RUNTIME_LIBRARY}", found[RUNTIME_LIBRARY]), *licences)


def _relax(module: Module, buckets: Buckets) -> tuple[tvm.IRModule, tuple[AnySpec, ...], tuple[Function, ...]]:
    """Return the lowered Relax module, the C kernels that it calls, and its entry points."""
    import_without_torch("tvm")  # 2 s and 300 MB: only when something is compiled
    import tvm
    from tvm import relax

    from pyc.backends.tvm.program import ProgramBuilder

    builder = ProgramBuilder(module.info, module.graph, weight_types(module.weights))
    functions: list[Function] = []
    for function in module.graph.functions:
        for rows in buckets.of(function.name):
            symbol = f"{function.name}_{rows}"
            inputs, weights = builder.add_function(function, rows, symbol)
            name = cast(FunctionName, function.name)
            functions.append(Function(name=name, tokens=rows, symbol=symbol, inputs=inputs, weights=weights))
    lowering = tvm.ir.transform.Sequential(
        [
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            relax.transform.StaticPlanBlockMemory(),
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )
    return lowering(builder.finish()), tuple(builder.kernels.values()), tuple(functions)


def _host(isa: Isa) -> Host:
    return isa.llvm_triple, isa.llvm_cpu, isa.llvm_attributes


def _host_objects(relax_module: tvm.IRModule, isa: Isa) -> tuple[bytes, ...]:
    """Compile the Relax module: the objects of its kernels and of its bytecode."""
    import tvm
    from tvm import relax

    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": isa.llvm_triple, "mcpu": isa.llvm_cpu, "mattr": list(isa.llvm_attributes)}
    )
    objects: list[bytes] = []

    def keep(output: str, files: list[str], options: object = None, **_: object) -> None:
        objects.extend(Path(file).read_bytes() for file in files if file.endswith(".o"))
        Path(output).touch()

    try:
        # The program checks what it is given; what it then gives its kernels was planned and is not checked again.
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            executable = relax.build(relax_module, target, relax_pipeline=None)
        with tempfile.TemporaryDirectory(prefix="pyc-tvm-") as directory:
            executable.export_library(str(Path(directory) / "program.so"), fcompile=keep)
    except (tvm.error.TVMError, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines()
        raise LowerError(f"tvm: {isa.name}: {lines[-1] if lines else error}") from error
    return tuple(objects)
