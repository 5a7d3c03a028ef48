"""Which operations one kernel does together: add, norm or gate, quantize, over rows; a product and its gate.

A step waits for each kernel, and what is between two of them goes through memory.
"""

from __future__ import annotations

from collections import Counter

from pyc.backends.kernels import GATES
from pyc.compiler.ir import Function, Operation
from pyc.compiler.quantization import BLOCK

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


def recorded_attention(function: Function, head_dim: int) -> dict[str, Operation]:
    """Return the quantize_rows that alone reads attention of all tokens, by attention's result."""
    users = Counter(name for operation in function.operations for name in set(operation.operands))
    made = {operation.result.name for operation in function.operations if operation.kind == "cached_attention"}
    return {
        operation.operands[0]: operation
        for operation in function.operations
        if operation.kind == "quantize_rows"
        and operation.operands[0] in made
        and users[operation.operands[0]] == 1
        and operation.result.type.shape[0] == "tokens"
        and head_dim % BLOCK == 0
    }


def gated_products(function: Function, quantized: dict[str, Operation]) -> dict[str, tuple[Operation, Operation]]:
    """Return the gate and the quantize_rows that alone read a product of gates and values, by the product's result."""
    users = Counter(name for operation in function.operations for name in set(operation.operands))
    gates = {operation.operands[0]: operation for operation in function.operations if operation.kind == "gated_pair"}
    found: dict[str, tuple[Operation, Operation]] = {}
    for product in function.operations:
        gate = gates.get(product.result.name)
        if product.kind != "linear_quantized" or product.weights[1] or gate is None or users[product.result.name] > 1:
            continue
        if product.result.type.shape[0] != "tokens":
            continue
        width = gate.result.type.shape[1]
        assert isinstance(width, int)
        if gate.result.name in quantized and gate.text("function") in GATES and width % BLOCK == 0:
            found[product.result.name] = gate, quantized[gate.result.name]
    return found
