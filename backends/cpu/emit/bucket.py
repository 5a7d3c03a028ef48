"""One function at one number of rows as a list of calls.

Every operation becomes a call of a TIR kernel (`backends.cpu.tir`) or of a C kernel (`backends.cpu.kernels`) through
`tir.extern`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pyc.backends.cpu.constants import CACHE_BLOCK_TOKENS, TILE_TOKENS
from pyc.backends.cpu.emit.call_list import Call, CallList, Tensor
from pyc.backends.cpu.emit.kernel_set import Adds, KernelSet
from pyc.backends.cpu.emit.operands import embedding_kernel, product_kernel
from pyc.backends.cpu.emit.prefetch import next_weights
from pyc.backends.cpu.emit.row_kernels import row_kernel
from pyc.backends.cpu.isa import Products
from pyc.backends.cpu.kernels.attention import (
    AppendSpec,
    AttentionSpec,
    CacheSpec,
    SpanAttentionSpec,
)
from pyc.backends.cpu.kernels.linear import (
    AnySpec,
    GatedSpec,
    LinearAppendSpec,
    QuantizeSpec,
    SplitSpec,
)
from pyc.backends.cpu.operators import MATMULS, READ_RECORDS
from pyc.backends.cpu.records import Records
from pyc.backends.cpu.tir import elementwise
from pyc.backends.cpu.tir.extern import Argument
from pyc.compiler.ir import Function, Operation, TensorType, Value
from pyc.runtime.executors.cpu.kv_cache import head_bytes

if TYPE_CHECKING:
    from pyc.backends.cpu.emit.program import ProgramBuilder

_DTYPES = {"f32": "float32", "f16": "float16", "i32": "int32", "u8": "uint8"}


class Bucket:
    """One function at one number of rows, of libraries that multiply as many in the way of `products`.

    `weight_names`: its parameters behind inputs and caches, the same for all versions of a function.
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        function: Function,
        weight_names: tuple[str, ...],
        rows: int,
        products: Products = "vectors",
    ) -> None:
        self._builder = builder
        self._function = function
        self._rows = rows
        self._tiles = products == "tiles"
        self._own = builder.variants[products].kernels
        self._sizes = {"tokens": rows, "sequences": builder.info.max_sequences}
        self._values: dict[str, Tensor] = {}
        self._calls: list[Call] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, Argument] = {}
        self._next = next_weights(function, builder.graph)
        self._weight_names = weight_names
        self.inputs: tuple[str, ...] = ()

    def emit(self, symbol: str) -> CallList:
        """Emit every operation."""
        parameters = self._parameters()
        for operation in self._function.operations:
            for value in operation.results:
                self._note(value, "tokens")
            self._values[operation.result.name] = _EMITTERS[operation.kind](self, operation)
        return CallList(symbol, parameters, tuple(self._calls), self._values[self._function.result])

    def _parameters(self) -> tuple[Tensor, ...]:
        """Return the inputs, the caches of the layers, and the weights."""
        found: dict[str, Tensor] = {}
        for value in self._function.parameters:
            found[value.name] = Tensor(self._fixed(value.type.shape), _DTYPES[value.type.dtype])
            self._note(value, "tokens" if value.type.shape[0] == "tokens" else found[value.name].shape[0])
        cache = self._builder.info.kv_cache
        if cache is not None and any(o.kind in _ATTEND for o in self._function.operations):
            block = (2, cache.heads, head_bytes(cache))
            for layer in range(cache.layers):
                found[f"kv_{layer}"] = Tensor((1, *block), "uint8")  # and as many blocks more as the caller has
                self._types[f"kv_{layer}"] = Argument(("blocks", *block), "uint8")
        self.inputs = tuple(found)
        for name in self._weight_names:
            weight = self._builder.weights[name]
            found[name] = Tensor(weight.shape, _DTYPES[weight.dtype])
            self._types[name] = Argument(weight.shape, _DTYPES[weight.dtype])
        self._values.update(found)
        return tuple(found.values())

    def _note(self, value: Value, rows: int | str) -> None:
        """Remember the shape of a value, here and as an argument of kernels, to which the rows of a batch vary."""
        fixed = self._shapes[value.name] = self._fixed(value.type.shape)
        self._types[value.name] = Argument((rows, *fixed[1:]), _DTYPES[value.type.dtype])

    def _fixed(self, shape: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else self._sizes[size] for size in shape)

    def _width(self, name: str) -> int:
        return self._shapes[name][1]

    def _arguments(self, operation: Operation) -> list[Tensor]:
        """Return operands and present weights, in order."""
        return [self._values[name] for name in (*operation.operands, *operation.weights) if name]

    def _call(self, kernel: str, operands: list[Tensor], shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
        """Call a kernel that makes one tensor."""
        result = Tensor(shape, dtype)
        self._calls.append(Call(kernel, tuple(operands), (result,)))
        return result

    def _one_row(self, operation: Operation) -> bool:
        """Whether it has a single row, which is left on the calling thread."""
        return self._shapes[operation.result.name][0] == 1

    def _by_tiles(self, operation: Operation) -> bool:
        """Whether the tile unit may do it."""
        return self._tiles and self._shapes[operation.result.name][0] >= TILE_TOKENS

    def _extern(
        self, operation: Operation, spec: AnySpec, *caches: str, alone: bool = False, ahead: str = ""
    ) -> Tensor:
        """Run a C kernel on the operands, the weights and `caches`, with the weight `ahead` coming next."""
        names = (*(name for name in (*operation.operands, *operation.weights) if name), *caches)
        return self._run(self._builder.kernels, spec, names, operation.result, alone=alone, ahead=ahead)

    def _run(
        self,
        kernels: KernelSet,
        spec: AnySpec,
        names: tuple[str, ...],
        result: Value,
        *,
        alone: bool = False,
        ahead: str = "",
    ) -> Tensor:
        """Run a C kernel of `kernels` on the values `names`."""
        made = self._types[result.name]
        types = (*(self._types[name] for name in names), made)
        kernel = kernels.extern(spec, types, alone, self._types[ahead] if ahead else None)
        operands = [self._values[name] for name in (*names, ahead) if name]
        return self._call(kernel, operands, self._shapes[result.name], made.dtype)

    def embedding(self, operation: Operation) -> Tensor:
        """Gather rows of a packed table."""
        spec = embedding_kernel(self._builder.weights[operation.weights[0]])
        return self._extern(operation, spec, alone=self._one_row(operation))

    def linear(self, operation: Operation) -> Tensor:
        """Multiply by a packed matrix, with f32 activations or with records."""
        weight, bias = operation.weights
        spec = product_kernel(self._builder.weights[weight], has_bias=bool(bias))
        ahead, (x,) = self._next.get(operation.result.name, ""), operation.operands
        if not self._by_tiles(operation) or not (spec.records or spec.splits):
            return self._extern(operation, spec, ahead=ahead)
        names = (self._split(x) if spec.splits else x, weight, *([bias] if bias else []))
        return self._run(self._own, replace(spec, tiles=True), names, operation.result, ahead=ahead)

    def linear_gated_quantize(self, operation: Operation) -> Tensor:
        """Multiply by gates and values, and make records of act(gate) * value."""
        (weight,), (x,) = operation.weights, operation.operands
        spec = product_kernel(self._builder.weights[weight], has_bias=False)
        product = replace(spec, tiles=self._by_tiles(operation))
        gated = GatedSpec(product, operation.text("function"), _records(operation, "makes"))
        ahead = self._next.get(operation.result.name, "")
        return self._run(self._own, gated, (x, weight), operation.result, ahead=ahead)

    def linear_append(self, operation: Operation) -> Tensor:
        """Multiply by queries, keys and values, and append."""
        (weight, bias, *gains), (x, *behind) = operation.weights, operation.operands
        product = product_kernel(self._builder.weights[weight], has_bias=bool(bias))
        both = LinearAppendSpec(product, self._append_spec(operation, bool(gains[0])))
        names = (x, weight, bias, *behind, *gains, _cache_of(operation))
        ahead = self._next.get(operation.result.name, "")
        return self._run(self._own, both, tuple(name for name in names if name), operation.result, ahead=ahead)

    def _split(self, x: str) -> str:
        """Split activations f32 for the tile unit, once for all products that read them; return what they became."""
        pieces, split = f"{x}.pieces", SplitSpec(self._width(x))
        if pieces not in self._values:
            made = Value(pieces, TensorType("u8", ("tokens", split.record_bytes)))
            self._note(made, "tokens")
            self._values[pieces] = self._run(self._own, split, (x,), made)
        return pieces

    def quantize_rows(self, operation: Operation) -> Tensor:
        """Make records of activations."""
        spec = QuantizeSpec(self._width(operation.operands[0]), _records(operation))
        return self._extern(operation, spec, alone=self._one_row(operation))

    def rows(self, operation: Operation) -> Tensor:
        """Run a TIR kernel over rows."""
        factory, features, constants = row_kernel(operation, self._width, self._table_rows)
        kernel = self._builder.kernels.rows(factory, (self._one_row(operation), features, *constants))
        return self._call(kernel, self._arguments(operation), self._shapes[operation.result.name])

    def records(self, operation: Operation) -> Tensor:
        """Run a TIR kernel over rows that makes records of them, perhaps of a sum, which then is a result too."""
        factory, features, constants = row_kernel(operation, self._width, self._table_rows)
        constants = (self._one_row(operation), features, *constants)
        spec = QuantizeSpec(features, _records(operation))
        count, operands = self._shapes[operation.result.name][0], self._arguments(operation)
        adds: Adds = ""
        rows, records = Tensor((count, features), "float32"), Tensor((count, spec.record_bytes), "uint8")
        results: tuple[Tensor, ...] = (rows, records)
        for total in operation.also:
            adds = "in place" if dict(operation.attributes)["in_place"] else "apart"
            made = operands[0] if adds == "in place" else Tensor(rows.shape, "float32")
            results = (records,) if adds == "in place" else (made, *results)
            self._values[total.name] = made
        kernel = self._builder.kernels.records(factory, constants, spec, adds)
        self._calls.append(Call(kernel, tuple(operands), results))
        return records

    def _table_rows(self, weight: str) -> int:
        return self._builder.weights[weight].rows

    def select_row(self, operation: Operation) -> Tensor:
        """Copy one row."""
        dtype = _DTYPES[operation.result.type.dtype]
        shape = self._shapes[operation.result.name]
        factory = elementwise.select_row if len(shape) == 2 else elementwise.select_number
        kernel = self._builder.kernels.rows(factory, (dtype, *shape[1:]))
        return self._call(kernel, self._arguments(operation), shape, dtype)

    def qkv_append(self, operation: Operation) -> Tensor:
        """Prepare heads and append keys and values to the layer's cache."""
        spec = self._append_spec(operation, bool(operation.weights[0]))
        return self._extern(operation, spec, _cache_of(operation))

    def _append_spec(self, operation: Operation, has_gain: bool) -> AppendSpec:
        half = self._width(operation.operands[1]) // 2
        return AppendSpec(self._cache_spec(operation), half, has_gain, operation.number("epsilon"))

    def cached_attention(self, operation: Operation) -> Tensor:
        """Attend to the layer's cache, perhaps into records."""
        cache, layer = self._cache_spec(operation), _cache_of(operation)
        if not self._by_tiles(operation):
            return self._extern(operation, AttentionSpec(cache), layer)
        records = _records(operation) if operation.kind == "cached_attention_quantize" else None
        spec = AttentionSpec(cache, records, tiles=True)
        return self._run(self._own, spec, (*operation.operands, layer), operation.result)

    def _cache_spec(self, operation: Operation) -> CacheSpec:
        """Return the constants of the cache: attention rounds where every product of the function does."""
        cache = self._builder.info.kv_cache
        assert cache is not None
        assert cache.block_tokens == CACHE_BLOCK_TOKENS, f"blocks of {cache.block_tokens} positions have no kernels"
        attributes = dict(operation.attributes)
        products = {o.kind for o in self._function.operations} & MATMULS
        return CacheSpec(
            operation.integer("heads"),
            cache.heads,
            cache.head_dim,
            self._shapes["block_table"][1],
            operation.integer("window") if "window" in attributes else 0,
            cache.dtype,
            operation.number("scale") if "scale" in attributes else 1.0,
            rounded=bool(products) and products <= READ_RECORDS,
        )

    def qkv_span_attention(self, operation: Operation) -> Tensor:
        """Attend to the rows of the same span."""
        spec = SpanAttentionSpec(
            operation.integer("heads"), operation.integer("head_dim"), operation.number("scale")
        )
        return self._extern(operation, spec)

    def pool(self, operation: Operation) -> Tensor:
        """Reduce the rows of each sequence to one."""
        constants = (
            self._builder.info.max_sequences,
            self._width(operation.result.name),
            operation.text("mode"),
            bool(dict(operation.attributes)["normalize"]),
        )
        kernel = self._builder.kernels.rows(elementwise.pool, constants)
        return self._call(kernel, self._arguments(operation), self._shapes[operation.result.name])


def _records(operation: Operation, key: str = "records") -> Records:
    return cast(Records, operation.text(key))


def _cache_of(operation: Operation) -> str:
    """Return the parameter that is the cache of the operation's layer."""
    return f"kv_{operation.integer('layer')}"


_ATTEND = frozenset({"cached_attention", "cached_attention_quantize"})

_EMITTERS: dict[str, Callable[[Bucket, Operation], Tensor]] = {
    "add": Bucket.rows,
    "add_row": Bucket.rows,
    "rms_norm": Bucket.rows,
    "rms_norm_quantize": Bucket.records,
    "add_rms_norm_quantize": Bucket.records,
    "layer_norm": Bucket.rows,
    "layer_norm_quantize": Bucket.records,
    "add_layer_norm_quantize": Bucket.records,
    "slice": Bucket.rows,
    "concat": Bucket.rows,
    "rope_angles": Bucket.rows,
    "activation": Bucket.rows,
    "activation_quantize": Bucket.records,
    "gated": Bucket.rows,
    "gated_quantize": Bucket.records,
    "gated_pair": Bucket.rows,
    "gated_pair_quantize": Bucket.records,
    "embedding": Bucket.embedding,
    "linear": Bucket.linear,
    "linear_quantized": Bucket.linear,
    "linear_gated_quantize": Bucket.linear_gated_quantize,
    "linear_append": Bucket.linear_append,
    "linear_quantized_append": Bucket.linear_append,
    "quantize_rows": Bucket.quantize_rows,
    "select_row": Bucket.select_row,
    "qkv_append": Bucket.qkv_append,
    "cached_attention": Bucket.cached_attention,
    "cached_attention_quantize": Bucket.cached_attention,
    "qkv_span_attention": Bucket.qkv_span_attention,
    "pool": Bucket.pool,
}
"""How each lowered operator is emitted; attention, rope and head_norm are gone by then."""
