"""The backend for TensorRT: an artifact's functions as ONNX graphs for its parser. Engines are built where they run.

Matrices lie in the artifact as the backend for ONNX lays them out, so that one with both targets has them once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
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
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor
from pyc.compiler.weights import Expression
from pyc.runtime.artifact.format import Function, Tool
from pyc.runtime.errors import MissingExtraError
from pyc.runtime.executors.protocol import OWN_CACHES
from pyc.runtime.executors.tensorrt.program import CONVENTION, Graph, TensorRtProgram, encode_program
from pyc.runtime.host.extras import install_line

_FUNCTIONS = ("forward", "logits", "embed")
"""A prompt's last row is taken from "forward": shapes are dynamic, and "prompt" would be the same graph."""


class TensorRtBackend:
    """Writes graphs that TensorRT's parser takes. It needs onnx, and neither TensorRT nor a GPU."""

    name: ClassVar[str] = "tensorrt"
    operators: ClassVar[Mapping[str, Operator]] = ONNX_OPERATORS
    cache_block_tokens: ClassVar[None] = None
    suffix: ClassVar[str] = ".tensorrt"
    memory: ClassVar[Memory] = Memory(0, 0, run_bytes=None, cache_dtype=OWN_CACHES["tensorrt"], heads_apart=True)
    """What TensorRT and a driver take of the host's memory was measured nowhere."""

    def held_bytes(self, weight: StoredTensor) -> int:
        """What TensorRT holds on the host is not known."""
        return 0

    def passes(self) -> tuple[Pass, ...]:
        """Those of the backend for ONNX."""
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
        """Write the graphs; LowerError names an operator that TensorRT has not.

        Nothing is said where onnx is not installed: a plan does not need it, and a build asks for it (`tools`).
        """
        if importlib.util.find_spec("onnx") is None:
            return
        list(self.compile(module, buckets, ("",)))

    def compile(self, module: Module, buckets: Buckets, isas: tuple[str, ...]) -> Iterator[CompiledProgram]:
        """Yield the program, the same for each variant; LowerError names an operator that TensorRT has not."""
        from pyc.backends.tensorrt.interface import write_function
        from pyc.backends.tensorrt.profiles import capacities, profiles_of

        weights = {name: self.stored(expression) for name, expression in module.weights.items()}
        graphs: list[Graph] = []
        functions: list[Function] = []
        for function in module.graph.functions:
            if function.name not in _FUNCTIONS:
                continue
            model, initializers = write_function(function, module, weights)
            graphs.append(Graph(function.name, model, initializers, profiles_of(function.name, module.info, buckets)))
            inputs = tuple(parameter.name for parameter in function.parameters)
            read = tuple(dict.fromkeys(name for initializer in initializers for name in initializer.tensors))
            for rows in buckets.of(function.name):
                functions.append(Function(function.name, rows, f"{function.name}_{rows}", inputs, read))
        cache = module.info.kv_cache
        program = TensorRtProgram(
            tuple(graphs),
            is_exact=_is_exact(module),
            layers=cache.layers if cache else 0,
            kv_heads=cache.heads if cache else 0,
            head_features=cache.head_dim if cache else 0,
            capacities=capacities(module.info) if cache else (),
        )
        for isa in isas:
            yield CompiledProgram(isa, "any", (), encode_program(program), tuple(functions))

    def cache_values(self, module: Module, isa: str) -> str:
        """What the cache holds, whatever the header says."""
        return "f32"

    def tools(self) -> tuple[Tool, ...]:
        """onnx, and the convention between graphs and executor; MissingExtraError where it is not installed."""
        try:
            version = importlib.metadata.version("onnx")
        except importlib.metadata.PackageNotFoundError as error:
            raise MissingExtraError(
                f"targets: backend tensorrt: the package onnx is not installed; to install it, {install_line('onnx')}"
            ) from error
        return Tool(name="onnx", version=version), Tool(*CONVENTION)

    def sources_digest(self) -> str:
        """What stands for this package's code, and that of the backend for ONNX, of which it has most."""
        return sources_digest("pyc.backends.tensorrt", "pyc.backends.onnx", "pyc.backends.lowering")

    def stop(self) -> None:
        """Nothing runs that takes long."""

    def close(self) -> None:
        """Nothing was made."""


def _is_exact(module: Module) -> bool:
    """Whether no product of the recipe rounds the rows that it multiplies."""
    operations = [operation for function in module.graph.functions for operation in function.operations]
    kinds = [operation for operation in operations if operation.kind == "blockwise_linear"]
    return all(operation.text("activations") == "f32" for operation in kinds)
