"""Which TIR kernel an operation over rows is, and the constants it is made with."""

from __future__ import annotations

from collections.abc import Callable

from pyc.backends.cpu.emit.kernel_set import Factory
from pyc.backends.cpu.tir import elementwise, norm, rope
from pyc.compiler.ir import Operation

Width = Callable[[str], int]
"""Features of a value by its name."""


def row_kernel(operation: Operation, width: Width, table_rows: Width) -> tuple[Factory, int, tuple[object, ...]]:
    """Return the factory, its first constant, which are the features of a row, and the others.

    An operation that quantizes, or adds before, has the kernel of what is between. `table_rows` gives the rows of a
    weight.
    """
    x = operation.operands[0]
    match operation.kind:
        case "add":
            return elementwise.add, width(x), ()
        case "add_row":
            constants = table_rows(operation.weights[0]), operation.integer("index")
            return elementwise.add_row, width(x), constants
        case "rms_norm" | "rms_norm_quantize" | "add_rms_norm_quantize":
            factory = norm.rms_norm_gain if operation.weights[0] else norm.rms_norm
            return factory, width(x), (operation.number("epsilon"),)
        case "layer_norm" | "layer_norm_quantize" | "add_layer_norm_quantize":
            return norm.layer_norm, width(x), (operation.number("epsilon"),)
        case "slice":
            start, stop = operation.integer("start"), operation.integer("stop")
            return elementwise.copy_columns, width(x), (start, stop - start)
        case "concat":
            return elementwise.concat, width(x), (width(operation.operands[1]),)
        case "rope_angles":
            numbers = [operation.number(key) for key in ("scale", "base", "factor", "original_context", "dynamic")]
            scale, base, factor, original, dynamic = numbers
            half = width(operation.result.name) // 2
            return rope.rope_angles, half, (scale, base, factor, int(original), bool(dynamic))
        case "activation" | "activation_quantize":
            return elementwise.activation, width(x), (operation.text("function"),)
        case "gated" | "gated_quantize":
            return elementwise.gated, width(x), (operation.text("function"),)
        case "gated_pair" | "gated_pair_quantize":
            return elementwise.gated_pair, width(x) // 2, (operation.text("function"),)
        case _:
            raise AssertionError(f"{operation.kind} has no kernel over rows")
