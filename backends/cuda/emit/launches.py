"""The launches of all functions and buckets of a module, and the kernels that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyc.backends.cuda.emit.function import FunctionEmitter
from pyc.backends.cuda.emit.kernel_table import KernelTable
from pyc.backends.cuda.emit.sampling import emit_sampler
from pyc.backends.protocol import Buckets
from pyc.compiler.ir import Module
from pyc.compiler.storage import StoredTensor
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.executors.cuda.kv_cache import block_bytes
from pyc.runtime.executors.cuda.program import CudaProgram, DeviceFunction


@dataclass(frozen=True, slots=True)
class Launches:
    """A program that lacks its machine code, and the `sources` of each unit of that, which are compiled together."""

    program: CudaProgram
    sources: tuple[tuple[str, ...], ...]


def emit_launches(
    module: Module, buckets: Buckets, weights: Mapping[str, StoredTensor], *, has_warpgroups: bool
) -> Launches:
    """Return the launches of a module for GPUs whose warpgroups multiply, or for all others. Raises LowerError for
    operations without a kernel."""
    cache = module.info.kv_cache
    cache_bytes = block_bytes(cache) if cache else 0
    table = KernelTable()
    emitted: list[DeviceFunction] = []
    heads: list[int] = []
    for function in module.graph.functions:
        for rows in rows_of(function.name, buckets, module.info):
            emitter = FunctionEmitter(
                function, rows, module.info, weights, table, cache_bytes, has_warpgroups=has_warpgroups
            )
            emitted.append(emitter.emit(symbol_of(function.name, rows)))
            if function.name == "logits":
                heads.append(rows)
    samplers = tuple(emit_sampler(rows, module.info, table) for rows in heads)
    every = CudaProgram((), (), tuple(emitted), samplers=samplers).every_function
    counts = {launch.kernel: len(launch.buffers) for each in every for launch in each.launches}
    records = table.records([counts[number] for number in range(len(table.kernels))])
    sources = tuple(tuple(kernel.source for kernel in unit) for unit in table.units())
    return Launches(CudaProgram((), records, tuple(emitted), cache_bytes, samplers), sources)


def symbol_of(function: str, rows: int) -> str:
    """Return what a function is called at a number of rows."""
    return f"{function}_{rows}"


def rows_of(function: str, buckets: Buckets, info: ModelInfo) -> tuple[int, ...]:
    """Return the row counts of a function: of the head also those of a prompt's last row and of every step, so that
    tokens are chosen without the host."""
    rows = buckets.of(function)
    if function != "logits":
        return rows
    return tuple(sorted({1, *rows, *(count for count in buckets.tokens if count <= info.max_sequences)}))
