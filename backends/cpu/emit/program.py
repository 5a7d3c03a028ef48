"""Turns the functions of a lowered graph into lists of calls, once for each bucket: `bucket` has what becomes of each
operation. Kernels with equal constants are shared by all layers and buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyc.backends.cpu.emit.bucket import Bucket
from pyc.backends.cpu.emit.kernel_set import KernelSet, Variant
from pyc.backends.cpu.emit.operands import WeightType
from pyc.backends.cpu.emit.prefetch import next_weights
from pyc.backends.cpu.isa import GemmStrategy
from pyc.backends.cpu.versions import are_many, find_version, version_of
from pyc.compiler.ir import Function, Graph
from pyc.runtime.artifact.format import ModelInfo


@dataclass
class ProgramBuilder:
    """Collects functions, and the TIR and C kernels that they call."""

    info: ModelInfo
    graph: Graph
    weights: Mapping[str, WeightType]
    own: tuple[GemmStrategy, ...] = ()
    """The GEMM strategies that the libraries have, beside simd."""
    variants: dict[GemmStrategy, Variant] = field(init=False)

    def __post_init__(self) -> None:
        self.variants = {"simd": Variant(KernelSet())}
        self.variants |= {strategy: Variant(KernelSet(f"{strategy}_")) for strategy in self.own}

    @property
    def kernels(self) -> KernelSet:
        """Those of all libraries."""
        return self.variants["simd"].kernels

    def add_function(self, function: Function, rows: int, symbol: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Add `function` with `rows` tokens under the name `symbol`; return its inputs and weights in call order."""
        used = (name for operation in function.operations for name in operation.weights if name)
        weights = tuple(dict.fromkeys([*used, *next_weights(function, self.graph).values()]))
        made = (bucket := Bucket(self, function, weights, rows)).emit(symbol)
        for strategy, variant in self.variants.items():
            calls = made
            if are_many(rows, strategy):
                version = find_version(self.graph, function.name, version_of(rows, strategy))
                calls = Bucket(self, version, weights, rows, strategy).emit(symbol)
            variant.functions.append(calls)
        return bucket.inputs, weights
