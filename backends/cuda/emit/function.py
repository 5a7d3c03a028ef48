"""One function at one number of rows as launches over planned memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from pyc.backends.cuda.emit.calls import Call, Context, cache_of, call_of, is_linear
from pyc.backends.cuda.emit.fuse_layers import fuse_layers
from pyc.backends.cuda.emit.kernel_table import KernelTable
from pyc.backends.cuda.emit.memory_plan import Order, Range, Workspace
from pyc.backends.cuda.emit.rounded_values import with_rounded_values
from pyc.compiler.ir import Function
from pyc.compiler.schemes import activations_of
from pyc.compiler.storage import StoredTensor
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.cuda.program import ZEROED_BYTES, Buffer, DeviceFunction, InputArray, Launch

_VALUE_BYTES = 4
"""Of f32 and i32, which all values are."""


class FunctionEmitter:
    """Emits `function` at `rows` tokens; kernels go into `table`."""

    def __init__(
        self,
        function: Function,
        rows: int,
        info: ModelInfo,
        weights: Mapping[str, StoredTensor],
        table: KernelTable,
        cache_block_bytes: int,
        *,
        has_warpgroups: bool,
    ) -> None:
        matrices = [weights[operation.weights[0]] for operation in function.operations if is_linear(operation)]
        is_split = any(activations_of(matrix.scheme) == "f32" for matrix in matrices)
        context = Context({}, {}, weights, info, has_warpgroups, is_split)
        self._function = fuse_layers(function, _with_values(function, rows, context))
        self._context = with_rounded_values(self._function, _with_values(self._function, rows, context))
        self._weights, self._table = weights, table
        self._cache_block_bytes = cache_block_bytes
        self._workspace, self._order = Workspace(), Order()
        self._workspace.take(ZEROED_BYTES)
        self._buffers: dict[Buffer, int] = {}
        self._places: dict[str, Buffer] = {}
        self._launches: list[Launch] = []
        self._early: list[tuple[int, Buffer]] = []
        self._written: list[tuple[int, Buffer]] = []
        """Buffers that launches read before they wait, and that launches write, by their numbers."""

    def emit(self, symbol: str) -> DeviceFunction:
        """Return the launches. Raises LowerError for operations without a kernel."""
        function = self._function
        for value in function.parameters:
            self._places[value.name] = Buffer("input", value.name, 0, self._bytes(value.name))
        cache = self._context.info.kv_cache
        for layer in range(cache.layers if cache else 0):
            self._places[cache_of(layer)] = Buffer("cache", str(layer), 0, self._cache_block_bytes)
        last = self._last_uses()
        for index, operation in enumerate(function.operations):
            for value in operation.results:
                self._places[value.name] = self._placed(value.name)
            self._launch(call_of(operation, self._context))
            touched = dict.fromkeys((*operation.operands, *(value.name for value in operation.results)))
            for name in touched:
                place = self._places[name]
                if place.kind == "workspace" and last[name] == index:
                    self._workspace.give_back(place.offset, place.size_bytes)
        for launch, place in self._early:
            is_written = any(place == other and launch != number for number, other in self._written)
            if is_written or place.kind not in ("input", "cache"):
                raise LowerError(
                    f"{symbol}: launch {launch} reads {place.kind} {place.name} before it waits, and others write it; "
                    "that is a bug of pyc: report it, and build without the target cuda meanwhile"
                )
        inputs = tuple(self._array(value.name) for value in function.parameters)
        result = self._array(function.result)
        launches = tuple(self._launches)
        return DeviceFunction(symbol, inputs, result, self._workspace.size_bytes, tuple(self._buffers), launches)

    def _bytes(self, name: str) -> int:
        if rounded := self._context.rounded.get(name):
            return rounded.size_bytes(*self._context.shapes[name])
        return prod(self._context.shapes[name]) * _VALUE_BYTES

    def _array(self, name: str) -> InputArray:
        dtype = self._context.dtypes[name]
        assert dtype in ("f32", "i32"), f"{name} is {dtype}"
        return InputArray(name, dtype, self._context.shapes[name])  # type: ignore[arg-type]

    def _last_uses(self) -> dict[str, int]:
        """Return the number of the last operation that has a value."""
        return {
            name: index
            for index, operation in enumerate(self._function.operations)
            for name in (*operation.operands, *(value.name for value in operation.results))
        }

    def _placed(self, name: str) -> Buffer:
        size_bytes = self._bytes(name)
        if name == self._function.result:
            return Buffer("result", "", 0, size_bytes)
        return Buffer("workspace", "", self._workspace.take(size_bytes), size_bytes)

    def _launch(self, call: Call) -> None:
        """Add the launches of an operation. Their scratch is free for others behind the last of them."""
        scratch = {
            name: Buffer("workspace", "", self._workspace.take(size_bytes), size_bytes)
            for name, size_bytes in call.lowered.scratch.items()
        }
        taken = list(scratch.values())
        for name, size_bytes in call.lowered.zeroed.items():
            assert size_bytes <= ZEROED_BYTES, f"{name} takes {size_bytes} bytes of zeros"
            scratch[name] = Buffer("workspace", "", 0, size_bytes)
        self._early.extend((len(self._launches), self._place(call.arrays[name])) for name in call.lowered.early)
        for step in call.lowered.steps:
            places = [scratch.get(name) or self._place(call.arrays[name]) for name in step.arguments]
            writes = [
                place
                for name, place in zip(step.arguments, places, strict=True)
                if name in scratch or name in call.written
            ]
            after = self._order.add(_ranges(places), _ranges(writes))
            self._written.extend((len(self._launches), place) for place in writes)
            buffers = tuple(self._buffers.setdefault(place, len(self._buffers)) for place in places)
            self._launches.append(Launch(self._table.number(step.kernel), step.kernel.grid, buffers, after))
        for place in taken:
            self._workspace.give_back(place.offset, place.size_bytes)

    def _place(self, name: str) -> Buffer:
        return self._places.get(name) or Buffer("weight", name, 0, self._weights[name].size_bytes)


def _with_values(function: Function, rows: int, context: Context) -> Context:
    """Return the context with what is known of the function's values at `rows` tokens."""
    sizes = {"tokens": rows, "sequences": context.info.max_sequences}
    values = [*function.parameters, *(v for o in function.operations for v in o.results)]
    shapes = {
        value.name: tuple(size if isinstance(size, int) else sizes[size] for size in value.type.shape)
        for value in values
    }
    return replace(context, shapes=shapes, dtypes={value.name: value.type.dtype for value in values})


def _ranges(places: Iterable[Buffer]) -> list[Range]:
    """Return the memory that others may write: weights are never written."""
    return [
        Range(f"{place.kind}.{place.name}", place.offset, place.offset + place.size_bytes)
        for place in places
        if place.kind != "weight"
    ]
