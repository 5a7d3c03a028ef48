"""Which operations over rows one kernel does together: add, norm or gate, quantize. A step waits for each kernel."""

from __future__ import annotations

from collections import Counter

from pyc.compiler.ir import Function, Operation

_QUANTIZABLE = {"rms_norm", "layer_norm", "activation", "gated", "gated_pair"}
_NORMS = {"rms_norm", "layer_norm"}


def only_quantized(function: Function) -> dict[str, Operation]:
    """Return the quantize_rows that alone reads the result of an operation over rows, by that result."""
    users = Counter(name for operation in function.operations for name in set(operation.operands))
    users[function.result] += 1
    rows = {operation.result.name for operation in function.operations if operation.kind in _QUANTIZABLE}
    reads = {operation.operands[0]: operation for operation in function.operations if operation.kind == "quantize_rows"}
    return {name: operation for name, operation in reads.items() if name in rows and users[name] == 1}


def only_normed_first(function: Function, quantized: dict[str, Operation]) -> dict[str, Operation]:
    """Return the additions whose sums a norm, itself `quantized`, is the first to read, by the norm's result."""
    places = {operation.result.name: index for index, operation in enumerate(function.operations)}
    found: dict[str, Operation] = {}
    for index, operation in enumerate(function.operations):
        if operation.kind not in _NORMS or operation.result.name not in quantized:
            continue
        at = places.get(operation.operands[0], index)
        between = function.operations[at + 1 : index]
        if function.operations[at].kind == "add" and not any(operation.operands[0] in o.operands for o in between):
            found[operation.result.name] = function.operations[at]
    return found
