"""Fuse the matmul of gates and values with the gate (SwiGLU, GeGLU) and the quantizer behind it.

For libraries whose matmuls of many rows have a panel of gates and one of values in registers or in an N tile at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from pyc.backends.cpu.kernels.linear import GATES
from pyc.backends.cpu.row_formats import RowFormat
from pyc.backends.cpu.versions import rewrite_version
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.quantization import BLOCK
from pyc.compiler.rewrite import only_readers, with_replaced


@dataclass(frozen=True, slots=True)
class FuseLinearGated:
    """Rewrites linear_quantized and the gated_pair_quantize that alone reads it to linear_gated_quantize.

    In versions "amx", and in "scale_folded_whole" where the rows are interleaved: its kernels make whole groups.
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
        graph = rewrite_version(module.graph, "scale_folded_whole", lambda function: _fuse(function, ("interleaved",)))
        return module.with_graph(rewrite_version(graph, "amx", lambda function: _fuse(function, get_args(RowFormat))))


def _fuse(function: Function, makes: tuple[RowFormat, ...]) -> Function:
    """Fuse where the format that the gate makes is in `makes`."""
    readers = only_readers(function)
    replaced: dict[str, Operation | None] = {}
    for matmul in function.operations:
        gate = readers.get(matmul.result.name)
        if matmul.kind != "linear_quantized" or gate is None or gate.kind != "gated_pair_quantize":
            continue
        rows, outputs = matmul.result.type.shape
        assert isinstance(outputs, int)
        weight, bias = matmul.weights
        if bias or rows != "tokens" or outputs // 2 % BLOCK or gate.text("function") not in GATES:
            continue
        if gate.text("row_format") in makes:
            made = (("function", gate.text("function")), ("makes", gate.text("row_format")))
            attributes = tuple(sorted(matmul.attributes + made))
            replaced[matmul.result.name] = Operation(
                "linear_gated_quantize", gate.result, matmul.operands, (weight,), attributes
            )
            replaced[gate.result.name] = None
    return with_replaced(function, replaced)
