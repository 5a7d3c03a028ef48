"""Fuse the product of gates and values with the gate (SwiGLU, GeGLU) and the quantizer behind it.

For libraries whose products of many rows have a panel of gates and one of values in registers or in a strip at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from pyc.backends.cpu.kernels.linear import GATES
from pyc.backends.cpu.records import Records
from pyc.backends.cpu.versions import rewrite_version
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.quantization import BLOCK
from pyc.compiler.rewrite import only_readers, with_replaced


@dataclass(frozen=True, slots=True)
class FuseLinearGated:
    """Rewrites linear_quantized and the gated_pair_quantize that alone reads it to linear_gated_quantize.

    In versions "tiles", and in "folded_whole" where the records are interleaved: its kernels make whole groups of them.
    """

    name: ClassVar[str] = "fuse_linear_gated"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("quantizers-fused",)
    provides: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, str]:
        """None."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with versions of functions that have gates."""
        graph = rewrite_version(module.graph, "folded_whole", lambda function: _fuse(function, ("tiled",)))
        return module.with_graph(rewrite_version(graph, "tiles", lambda function: _fuse(function, get_args(Records))))


def _fuse(function: Function, makes: tuple[Records, ...]) -> Function:
    """Fuse where the records that the gate makes are of a kind in `makes`."""
    readers = only_readers(function)
    replaced: dict[str, Operation | None] = {}
    for product in function.operations:
        gate = readers.get(product.result.name)
        if product.kind != "linear_quantized" or gate is None or gate.kind != "gated_pair_quantize":
            continue
        rows, outputs = product.result.type.shape
        assert isinstance(outputs, int)
        weight, bias = product.weights
        if bias or rows != "tokens" or outputs // 2 % BLOCK or gate.text("function") not in GATES:
            continue
        if gate.text("records") in makes:
            made = (("function", gate.text("function")), ("makes", gate.text("records")))
            attributes = tuple(sorted(product.attributes + made))
            replaced[product.result.name] = Operation(
                "linear_gated_quantize", gate.result, product.operands, (weight,), attributes
            )
            replaced[gate.result.name] = None
    return with_replaced(function, replaced)
