"""The backend for ONNX Runtime: an artifact's functions as ONNX graphs, whose weights are tensors of the artifact."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from math import prod
from typing import ClassVar

from pyc.backends.onnx.layouts import STORAGE
from pyc.backends.onnx.operators import ONNX_OPERATORS
from pyc.backends.onnx.passes.lower_matrices import LowerMatrices
from pyc.backends.protocol import Buckets, CompiledProgram, Memory
from pyc.backends.sources_digest import sources_digest
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Pass
from pyc.compiler.operators import Operator
from pyc.compiler.schemes import Dense, Float8
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor
from pyc.compiler.text import print_graph
from pyc.compiler.weights import Expression
from pyc.runtime.artifact.format import Function, Tool
from pyc.runtime.errors import MissingExtraError
from pyc.runtime.executors.onnx.program import CONVENTION, Graph, Initializer, OnnxProgram, encode_program
from pyc.runtime.executors.protocol import OWN_CACHES
from pyc.runtime.host.extras import install_line

_FUNCTIONS = ("forward", "logits", "embed")
"""A prompt's last row is taken from "forward": shapes are dynamic, and "prompt" would be the same graph."""


class OnnxBackend:
    """Writes ONNX graphs of ONNX Runtime's own operators. They run on every machine that has it."""

    name: ClassVar[str] = "onnx"
    operators: ClassVar[Mapping[str, Operator]] = ONNX_OPERATORS
    cache_block_tokens: ClassVar[None] = None
    suffix: ClassVar[str] = ".onnx"
    memory: ClassVar[Memory] = Memory(0, 0, run_bytes=31_000_000, cache_dtype=OWN_CACHES["onnx"], heads_apart=True)
    """ONNX Runtime (measured: 30 to 32 MB)."""

    def held_bytes(self, weight: StoredTensor) -> int:
        """A copy, which ONNX Runtime packs once more; of bf16, f16 and fp8 as f32."""
        if isinstance(weight.scheme, Dense | Float8):
            return 2 * 4 * prod(weight.shape)
        return 2 * weight.size_bytes

    def passes(self) -> tuple[Pass, ...]:
        """Matrices to blocks and rows; operators are logical ones beside."""
        return (LowerMatrices(),)

    def stored(self, expression: Expression) -> StoredTensor:
        """What a weight is in the artifact; raises QuantizeError."""
        return STORAGE.stored_tensor(expression)

    def pieces(self, expression: Expression, files: SourceFiles, span: Span = WHOLE) -> Iterator[Piece]:
        """The tasks that make its bytes."""
        return STORAGE.pieces(expression, files, span)

    def fastest_first(self, isas: tuple[str, ...]) -> tuple[str, ...]:
        """There is one variant."""
        return isas

    def check(self, module: Module, buckets: Buckets) -> None:
        """Whatever its passes leave has operators."""

    def compile(self, module: Module, buckets: Buckets, isas: tuple[str, ...]) -> Iterator[CompiledProgram]:
        """Yield the program, the same for each variant."""
        from pyc.backends.onnx.fused import ProgramEmitter
        from pyc.backends.onnx.interface import write_function

        weights = {name: self.stored(expression) for name, expression in module.weights.items()}
        graphs: list[Graph] = []
        functions: list[Function] = []
        for function in module.graph.functions:
            if function.name not in _FUNCTIONS:
                continue
            model, references = write_function(function, module, weights, ProgramEmitter)
            initializers = tuple(
                Initializer(r.name, r.tensor, r.dtype, r.shape, r.row, r.scales, r.format, r.block) for r in references
            )
            graphs.append(Graph(function.name, model, initializers))
            inputs = tuple(parameter.name for parameter in function.parameters)
            read = tuple(dict.fromkeys(name for i in initializers for name in i.tensors))
            for rows in buckets.of(function.name):
                functions.append(Function(function.name, rows, f"{function.name}_{rows}", inputs, read))
        cache = module.info.kv_cache
        described = (cache.layers, cache.heads, ProgramEmitter.head_features(cache.head_dim)) if cache else ()
        program = encode_program(OnnxProgram(print_graph(module.graph), tuple(graphs), *described))
        for isa in isas:
            yield CompiledProgram(isa, "any", (), program, tuple(functions))

    def cache_values(self, module: Module, isa: str) -> str:
        """What the cache holds, whatever the header says."""
        return "f32"

    def tools(self) -> tuple[Tool, ...]:
        """onnx, and the convention between graphs and executor; MissingExtraError where it is not installed."""
        try:
            version = importlib.metadata.version("onnx")
        except importlib.metadata.PackageNotFoundError as error:
            raise MissingExtraError(
                f"targets: backend onnx: the package onnx is not installed; to install it, {install_line('onnx')}"
            ) from error
        return Tool(name="onnx", version=version), Tool(*CONVENTION)

    def sources_digest(self) -> str:
        """What stands for this package's code."""
        return sources_digest("pyc.backends.onnx", "pyc.backends.lowering")

    def stop(self) -> None:
        """Nothing runs that takes long."""

    def close(self) -> None:
        """Nothing was made."""
