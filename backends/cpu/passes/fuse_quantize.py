"""Fuse operations over rows with the quantizer of their result: norms and gates make quantized rows, not f32.

A step waits for each kernel, and what is between two of them goes through memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.rewrite import map_functions, only_readers, with_replaced

_FUSABLE = frozenset({"rms_norm", "layer_norm", "activation", "gated", "gated_pair"})


@dataclass(frozen=True, slots=True)
class FuseQuantize:
    """Rewrites X and the quantize_rows that alone reads it to X_quantize, for norms, activations and gates."""

    name: ClassVar[str] = "fuse_quantize"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("integer-matmuls", "prompt")
    provides: ClassVar[tuple[str, ...]] = ("quantizers-fused",)

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with quantize_rows only where others read the f32 too, or no kernel quantizes."""
        return module.with_graph(map_functions(module.graph, _fuse))


def quantizing(operation: Operation, quantize: Operation) -> Operation:
    """Return X_quantize for an operation X and the quantize_rows behind it."""
    attributes = tuple(sorted(operation.attributes + quantize.attributes))
    return Operation(
        f"{operation.kind}_quantize", quantize.result, operation.operands, operation.weights, attributes
    )


def _fuse(function: Function) -> Function:
    readers = only_readers(function)
    replaced: dict[str, Operation | None] = {}
    for operation in function.operations:
        reader = readers.get(operation.result.name)
        if operation.kind in _FUSABLE and reader is not None and reader.kind == "quantize_rows":
            replaced[operation.result.name] = quantizing(operation, reader)
            replaced[reader.result.name] = None
    return with_replaced(function, replaced)
