"""One function at one number of rows as a list of calls.

Every operation becomes a call of a TIR kernel (`tir_kernels`), or of a C kernel (`c_kernels`) through `tir.extern`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyc.backends.cpu.emit.c_kernels import CKernel, CKernels
from pyc.backends.cpu.emit.call_list import Call, CallList, Tensor
from pyc.backends.cpu.emit.kernel_set import Adds
from pyc.backends.cpu.emit.operands import TVM_DTYPES
from pyc.backends.cpu.emit.prefetch import next_weights
from pyc.backends.cpu.emit.tir_kernels import tir_kernel
from pyc.backends.cpu.isa import GemmStrategy
from pyc.backends.cpu.kernels.linear import QuantizeSpec
from pyc.backends.cpu.operators import QUANTIZING_ROWS
from pyc.backends.cpu.row_formats import RowFormat
from pyc.backends.cpu.tir.extern import Argument
from pyc.compiler.ir import Function, Operation, Value
from pyc.runtime.executors.cpu.kv_cache import head_bytes

if TYPE_CHECKING:
    from pyc.backends.cpu.emit.program import ProgramBuilder


class Bucket:
    """One function at one number of rows, of libraries with the GEMM strategy `strategy`.

    `weight_names`: its parameters behind inputs and caches, the same for all versions of a function.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        function: Function,
        weight_names: tuple[str, ...],
        rows: int,
        strategy: GemmStrategy = "simd",
    ) -> None:
        self._builder = builder
        self._function = function
        self._own = builder.variants[strategy].kernels
        self._sizes = {"tokens": rows, "sequences": builder.info.max_sequences}
        self._values: dict[str, Tensor] = {}
        self._calls: list[Call] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, Argument] = {}
        self._next = next_weights(function, builder.graph)
        self._c_kernels = CKernels(builder, function, self._shapes, strategy)
        self._weight_names = weight_names
        self.inputs: tuple[str, ...] = ()

    def emit(self, symbol: str) -> CallList:
        """Emit every operation; attention, rope and head_norm are gone by then."""
        parameters = self._parameters()
        for operation in self._function.operations:
            for value in operation.results:
                self._note(value, "tokens")
            c_kernel = self._c_kernels.kernel(operation)
            if c_kernel is not None:
                self._call_c(c_kernel, operation)
            elif operation.kind in QUANTIZING_ROWS:
                self._call_quantizing(operation)
            else:
                self._call_tir(operation)
        return CallList(symbol, parameters, tuple(self._calls), self._values[self._function.result])

    def _parameters(self) -> tuple[Tensor, ...]:
        """Return the inputs, the caches of the layers, and the weights."""
        found: dict[str, Tensor] = {}
        for value in self._function.parameters:
            found[value.name] = Tensor(self._fixed(value.type.shape), TVM_DTYPES[value.type.dtype])
            self._note(value, "tokens" if value.type.shape[0] == "tokens" else found[value.name].shape[0])
        cache = self._builder.info.kv_cache
        if cache is not None and any("layer" in dict(o.attributes) for o in self._function.operations):
            block = (2, cache.heads, head_bytes(cache))
            for layer in range(cache.layers):
                found[f"kv_{layer}"] = Tensor((1, *block), "uint8")  # and as many blocks more as the caller has
                self._types[f"kv_{layer}"] = Argument(("blocks", *block), "uint8")
        self.inputs = tuple(found)
        for name in self._weight_names:
            weight = self._builder.weights[name]
            found[name] = Tensor(weight.shape, TVM_DTYPES[weight.dtype])
            self._types[name] = Argument(weight.shape, TVM_DTYPES[weight.dtype])
        self._values.update(found)
        return tuple(found.values())

    def _note(self, value: Value, rows: int | str) -> None:
        """Remember the shape of a value, here and as an argument of kernels, to which the rows of a batch vary."""
        fixed = self._shapes[value.name] = self._fixed(value.type.shape)
        self._types[value.name] = Argument((rows, *fixed[1:]), TVM_DTYPES[value.type.dtype])

    def _fixed(self, shape: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else self._sizes[size] for size in shape)

    def _made(self, value: Value) -> Tensor:
        """Return new memory for a value."""
        made = self._values[value.name] = Tensor(self._shapes[value.name], TVM_DTYPES[value.type.dtype])
        return made

    def _arguments(self, operation: Operation) -> tuple[Tensor, ...]:
        """Return operands and present weights, in order."""
        return tuple(self._values[name] for name in (*operation.operands, *operation.weights) if name)

    def _call_c(self, kernel: CKernel, operation: Operation) -> None:
        """Call a C kernel, and name the weight that comes next."""
        following = self._next.get(operation.result.name, "")
        types = tuple(self._types[name] for name in (*kernel.arguments, operation.result.name))
        kernels = self._own if kernel.is_own else self._builder.kernels
        name = kernels.extern(kernel.spec, types, kernel.alone, self._types[following] if following else None)
        operands = tuple(self._values[name] for name in (*kernel.arguments, following) if name)
        self._calls.append(Call(name, operands, (self._made(operation.result),)))

    def _call_tir(self, operation: Operation) -> None:
        """Call a TIR kernel."""
        kernel = tir_kernel(operation, self._shapes, self._builder.weights)
        name = self._builder.kernels.rows(kernel.factory, kernel.constants)
        self._calls.append(Call(name, self._arguments(operation), (self._made(operation.result),)))

    def _call_quantizing(self, operation: Operation) -> None:
        """Call a TIR kernel that quantizes its rows, which are scratch, perhaps of a sum."""
        kernel = tir_kernel(operation, self._shapes, self._builder.weights)
        spec = QuantizeSpec(kernel.features, cast(RowFormat, operation.text("row_format")))
        operands = self._arguments(operation)
        scratch = Tensor((self._shapes[operation.result.name][0], kernel.features), "float32")
        results: tuple[Tensor, ...] = (scratch, self._made(operation.result))
        adds: Adds = ""
        for total in operation.also:
            if dict(operation.attributes)["in_place"]:
                adds, results = "in place", results[1:]
                self._values[total.name] = operands[0]
            else:
                adds, results = "apart", (self._made(total), *results)
        name = self._builder.kernels.quantizing(kernel.factory, kernel.constants, spec, adds)
        self._calls.append(Call(name, operands, results))
