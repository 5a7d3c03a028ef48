"""Which operations over rows one kernel does together: add, norm or gate, quantize. A step waits for each kernel."""

from __future__ import annotations

from collections import Counter

from pyc.compiler.ir import Function, Operation

_QUANTIZABLE = {"rms_norm", "layer_norm", "activation", "gated", "gated_pair"}
_NORMS = {"rms_norm", "layer_norm"}


def only_quantized(function: Function) -> dict[str, Operation]:
    """Return the operations over rows whose results nothing but one quantize_rows reads, by result."""
    users = Counter(name for operation in function.operations for name in set(operation.operands))
    users[function.result] += 1
    quantized = {operation.operands[0] for operation in function.operations if operation.kind == "quantize_rows"}
    return {
        operation.result.name: operation
        for operation in function.operations
        if operation.kind in _QUANTIZABLE and operation.result.name in quantized and users[operation.result.name] == 1
    }


def only_normed_first(function: Function, into_records: dict[str, Operation]) -> dict[str, Operation]:
    """Return the additions whose sums are first read by a norm of `into_records`, by the norm's result.

    They are computed where the norm is quantized, so nothing else may read them before that.
    """
    places = {operation.result.name: index for index, operation in enumerate(function.operations)}
    found: dict[str, Operation] = {}
    for index, operation in enumerate(function.operations):
        norm = into_records.get(operation.operands[0]) if operation.kind == "quantize_rows" else None
        at = places.get(norm.operands[0]) if norm is not None and norm.kind in _NORMS else None
        if norm is None or at is None or function.operations[at].kind != "add":
            continue
        between = function.operations[at + 1 : index]
        if not any(norm.operands[0] in other.operands for other in between if other is not norm):
            found[norm.result.name] = function.operations[at]
    return found
