"""Which TIR kernel an operation is: its factory (`backends.cpu.tir`) and the constants it is made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyc.backends.cpu.emit.kernel_set import Factory
from pyc.backends.cpu.emit.operands import TVM_DTYPES, WeightType
from pyc.backends.cpu.tir import elementwise, norm, rope
from pyc.compiler.ir import Operation

Shapes = Mapping[str, tuple[int, ...]]
"""Of values, by name."""


@dataclass(frozen=True, slots=True)
class TirKernel:
    """A kernel `factory(*constants)`; `features` of a row that it makes, before that is quantized."""

    factory: Factory
    constants: tuple[object, ...]
    features: int


def tir_kernel(operation: Operation, shapes: Shapes, weights: Mapping[str, WeightType]) -> TirKernel:
    """Return the kernel of an operation; AssertionError when it has none.

    An operation that quantizes, or adds before, has the kernel of what is between. Kernels over rows begin with whether
    there is one row alone, which is left on the calling thread.
    """
    x, made = (shapes[name] for name in (operation.operands[0], operation.result.name))
    width, one_row = x[-1], made[0] == 1
    match operation.kind:
        case "add":
            return TirKernel(elementwise.add, (one_row, width), width)
        case "add_row":
            rows = weights[operation.weights[0]].rows
            return TirKernel(elementwise.add_row, (one_row, width, rows, operation.integer("index")), width)
        case "rms_norm" | "rms_norm_quantize" | "add_rms_norm_quantize":
            factory: Factory = norm.rms_norm_gain if operation.weights[0] else norm.rms_norm
            return TirKernel(factory, (one_row, width, operation.number("epsilon")), width)
        case "layer_norm" | "layer_norm_quantize" | "add_layer_norm_quantize":
            return TirKernel(norm.layer_norm, (one_row, width, operation.number("epsilon")), width)
        case "activation" | "activation_quantize":
            return TirKernel(elementwise.activation, (one_row, width, operation.text("function")), width)
        case "gated" | "gated_quantize":
            return TirKernel(elementwise.gated, (one_row, width, operation.text("function")), width)
        case "gated_pair" | "gated_pair_quantize":
            half = width // 2
            return TirKernel(elementwise.gated_pair, (one_row, half, operation.text("function")), half)
        case "slice":
            start, features = operation.integer("start"), made[1]
            return TirKernel(elementwise.copy_columns, (one_row, width, start, features), features)
        case "concat":
            return TirKernel(elementwise.concat, (one_row, width, shapes[operation.operands[1]][1]), made[1])
        case "rope_angles":
            numbers = [operation.number(key) for key in ("scale", "base", "factor", "original_context", "dynamic")]
            scale, base, factor, original, dynamic = numbers
            constants = (one_row, made[1] // 2, scale, base, factor, int(original), bool(dynamic))
            return TirKernel(rope.rope_angles, constants, made[1])
        case "select_row":
            factory = elementwise.select_row if len(made) == 2 else elementwise.select_number
            return TirKernel(factory, (TVM_DTYPES[operation.result.type.dtype], *made[1:]), width)
        case "pool":
            normalize = bool(dict(operation.attributes)["normalize"])
            return TirKernel(elementwise.pool, (*made, operation.text("mode"), normalize), width)
        case _:
            raise AssertionError(f"{operation.kind} has no kernel in TIR")
