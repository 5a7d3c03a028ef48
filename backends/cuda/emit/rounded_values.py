"""Which values kernels write as rows that GEMMs read, rounded, so that no launch has to round them."""

from __future__ import annotations

from dataclasses import replace

from pyc.backends.cuda.emit.calls import Context, is_linear, linear_spec
from pyc.backends.cuda.kernels.linear import rounded_for
from pyc.backends.cuda.kernels.rounded_rows import AnyRows, Float8Rows
from pyc.compiler.ir import Function, Operation

_WRITERS = frozenset({"rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "gated_pair"})
"""Operations whose kernels can write them."""


def with_rounded_values(function: Function, context: Context) -> Context:
    """Return the context with those values of which every reader is a linear layer that takes the same rows."""
    readers: dict[str, list[Operation]] = {}
    for operation in function.operations:
        for name in operation.operands:
            readers.setdefault(name, []).append(operation)
    found: dict[str, AnyRows] = {}
    for operation in function.operations:
        name = operation.result.name
        is_gated = operation.kind == "fused_linear" and bool(operation.text("gate"))
        if not (is_gated or operation.kind in _WRITERS) or name == function.result or name not in readers:
            continue
        taken = {_rows_of(reader, context) for reader in readers[name]}
        rows = taken.pop() if len(taken) == 1 else None
        if rows is not None and not (is_gated and isinstance(rows, Float8Rows)):  # whose scale is that of all outputs
            found[name] = rows
    return replace(context, rounded=found)


def _rows_of(reader: Operation, context: Context) -> AnyRows | None:
    if not is_linear(reader):
        return None
    return rounded_for(linear_spec(reader, context), has_warpgroups=context.has_warpgroups)
