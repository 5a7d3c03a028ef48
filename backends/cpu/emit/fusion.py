"""Which operations one kernel does together: add, norm or gate, quantize, over rows; a product and its gate.

A step waits for each kernel, and what is between two of them goes through memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyc.backends.cpu.constants import LANES, RECORD_TOKENS
from pyc.backends.cpu.isa import Products
from pyc.backends.cpu.kernels.linear import GATES
from pyc.backends.cpu.operators import MATMULS
from pyc.compiler.ir import Function, Operation
from pyc.compiler.quantization import BLOCK

_QUANTIZABLE = {"rms_norm", "layer_norm", "activation", "gated", "gated_pair"}
_NORMS = {"rms_norm", "layer_norm"}


@dataclass(frozen=True, slots=True)
class FusionPlan:
    """What the kernels of a function do together: operations that another's kernel does, by the latter's result.

    `quantized`: what makes records of rows. `sums`: what a norm adds first; of the norms `in_place` where its operands
    were. `gated`: the gate and the quantizer behind a product. `recorded`: what makes records of attention.
    `appended`: the product before a qkv_append.
    """

    quantized: dict[str, Operation]
    sums: dict[str, Operation]
    in_place: frozenset[str]
    gated: dict[str, tuple[Operation, Operation]]
    recorded: dict[str, Operation]
    appended: dict[str, Operation]

    def fused_results(self) -> set[str]:
        """Return the results of all operations that the kernels of others do."""
        by_result = (self.sums, self.quantized, self.recorded, self.appended)
        gates = {gate.result.name for gate, _ in self.gated.values()}
        return gates | {operation.result.name for found in by_result for operation in found.values()}


def plan_fusion(function: Function, rows: int, products: Products, head_dim: int | None) -> FusionPlan:
    """Return what is fused in `function` with `rows` rows, many of them if `products` are not by vectors.

    `head_dim`: features of a head of the cache, if there is one.
    """
    quantized = only_quantized(function)
    sums = only_normed_first(function, quantized)
    gated = {} if products == "vectors" else gated_products(function, quantized)
    if products == "folded":  # into tiles of records, which are then all there are
        whole = rows % RECORD_TOKENS == 0
        gated = {name: pair for name, pair in gated.items() if whole and pair[1].text("records") == "tiled"}
    recorded = recorded_attention(function, head_dim) if products == "tiles" and head_dim else {}
    appended = appended_products(function, head_dim) if products == "folded" and head_dim else {}
    return FusionPlan(quantized, sums, summed_in_place(function, sums), gated, recorded, appended)


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


def summed_in_place(function: Function, sums: dict[str, Operation]) -> frozenset[str]:
    """Return the norms of `sums` after which nothing reads either of the values that were added."""
    outside = {value.name for value in function.parameters} | {function.result}
    last = {name: index for index, operation in enumerate(function.operations) for name in operation.operands}
    found = set()
    for index, operation in enumerate(function.operations):
        operands = sums[operation.result.name].operands if operation.result.name in sums else ()
        if len(set(operands)) == 2 and not outside & set(operands) and all(last[name] <= index for name in operands):
            found.add(operation.result.name)
    return frozenset(found)


def appended_products(function: Function, head_dim: int) -> dict[str, Operation]:
    """Return the product whose result a qkv_append alone reads, by the latter's; heads must be whole panels."""
    users = Counter(name for operation in function.operations for name in set(operation.operands))
    users[function.result] += 1
    appends = {operation.operands[0]: operation for operation in function.operations if operation.kind == "qkv_append"}
    return {
        appends[product.result.name].result.name: product
        for product in function.operations
        if product.kind in MATMULS
        and product.result.name in appends
        and users[product.result.name] == 1
        and product.result.type.shape[0] == "tokens"
        and head_dim % LANES == 0
    }


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
