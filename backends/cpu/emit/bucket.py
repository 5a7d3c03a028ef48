"""One function at one number of rows as a list of calls.

Every operation becomes calls of TIR kernels (`backends.cpu.tir`) or of C kernels (`backends.cpu.kernels`) through
`tir.extern`, unless the kernel of another does it (`fusion`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pyc.backends.cpu.constants import CACHE_BLOCK_TOKENS, TILE_TOKENS
from pyc.backends.cpu.emit.call_list import Call, CallList, Tensor
from pyc.backends.cpu.emit.fusion import plan_fusion
from pyc.backends.cpu.emit.kernel_set import Adds, Factory, KernelSet
from pyc.backends.cpu.emit.operands import embedding_kernel, product_kernel
from pyc.backends.cpu.emit.prefetch import next_weights
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
from pyc.backends.cpu.operators import MATMULS
from pyc.backends.cpu.records import Records
from pyc.backends.cpu.tir import elementwise, norm, rope
from pyc.backends.cpu.tir.extern import Argument
from pyc.compiler.ir import Function, Operation, TensorType, Value
from pyc.runtime.executors.cpu.kv_cache import head_bytes

if TYPE_CHECKING:
    from pyc.backends.cpu.emit.program import ProgramBuilder

_DTYPES = {"f32": "float32", "f16": "float16", "i32": "int32", "u8": "uint8"}


class Bucket:
    """One function at one number of rows, of libraries that multiply as many in the way of `products`."""

    def __init__(
        self, builder: ProgramBuilder, function: Function, rows: int, products: Products = "vectors"
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
        used = (name for o in function.operations for name in o.weights if name)
        self.weight_names = tuple(dict.fromkeys([*used, *self._next.values()]))
        self.inputs: tuple[str, ...] = ()
        cache = builder.info.kv_cache
        self._fusion = plan_fusion(function, rows, products, cache.head_dim if cache is not None else None)

    def emit(self, symbol: str) -> CallList:
        """Emit every operation, but for those that the kernel of another does."""
        parameters = self._parameters()
        others = self._fusion.fused_results()
        for operation in self._function.operations:
            self._note(operation.result, "tokens")
            if operation.result.name not in others:
                self._values[operation.result.name] = _EMITTERS[operation.kind](self, operation)
        return CallList(symbol, parameters, tuple(self._calls), self._values[self._function.result])

    def _parameters(self) -> tuple[Tensor, ...]:
        """Return the inputs, the caches of the layers, and the weights."""
        found: dict[str, Tensor] = {}
        for value in self._function.parameters:
            found[value.name] = Tensor(self._fixed(value.type.shape), _DTYPES[value.type.dtype])
            self._note(value, "tokens" if value.type.shape[0] == "tokens" else found[value.name].shape[0])
        cache = self._builder.info.kv_cache
        if cache is not None and any(o.kind == "cached_attention" for o in self._function.operations):
            block = (2, cache.heads, head_bytes(cache))
            for layer in range(cache.layers):
                found[f"kv_{layer}"] = Tensor((1, *block), "uint8")  # and as many blocks more as the caller has
                self._types[f"kv_{layer}"] = Argument(("blocks", *block), "uint8")
        self.inputs = tuple(found)
        for name in self.weight_names:
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

    def _simple(self, factory: Factory, operation: Operation, *constants: object) -> Tensor:
        kernel = self._builder.kernels.rows(factory, constants)
        return self._call(kernel, self._arguments(operation), self._shapes[operation.result.name])

    def _rowwise(self, factory: Factory, operation: Operation, *constants: object) -> Tensor:
        """The same for kernels that leave a single row on the calling thread; adds before and quantizes after it."""
        name = operation.result.name
        quantize, added = self._fusion.quantized.get(name), self._fusion.sums.get(name)
        constants = (self._one_row(operation), *constants)
        if quantize is None:
            return self._simple(factory, operation, *constants)
        spec = self._quantizer(quantize)
        rows = Tensor(self._shapes[name], "float32")
        records = Tensor((rows.shape[0], spec.record_bytes), "uint8")
        results: tuple[Tensor, ...] = (rows, records)
        adds: Adds = ""
        names = operation.operands
        if added is not None:
            adds = "in place" if name in self._fusion.in_place else "apart"
            names = (*added.operands, *operation.operands[1:])
            total = self._values[names[0]] if adds == "in place" else Tensor(rows.shape, "float32")
            results = (records,) if adds == "in place" else (total, *results)
            self._values[added.result.name] = total
        kernel = self._builder.kernels.records(factory, constants, spec, adds)
        operands = (self._values[name] for name in (*names, *operation.weights) if name)
        self._calls.append(Call(kernel, tuple(operands), results))
        self._values[quantize.result.name] = records
        return rows

    def _one_row(self, operation: Operation) -> bool:
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

    def product(self, operation: Operation) -> Tensor:
        """Multiply by a packed matrix, with f32 activations or with records."""
        weight, bias = operation.weights
        spec = product_kernel(self._builder.weights[weight], has_bias=bool(bias))
        ahead = self._next.get(operation.result.name, "")
        by_tiles = self._by_tiles(operation) and bool(spec.records or spec.splits)
        spec, (x,) = replace(spec, tiles=by_tiles), operation.operands
        if operation.result.name in self._fusion.gated:
            gate, quantize = self._fusion.gated[operation.result.name]
            gated = GatedSpec(spec, gate.text("function"), cast(Records, quantize.text("records")))
            return self._into_records(gated, (x, weight), quantize, ahead=ahead)
        if not by_tiles:
            return self._extern(operation, spec, ahead=ahead)
        names = (self._split(x) if spec.splits else x, weight, *([bias] if bias else []))
        return self._run(self._own, spec, names, operation.result, ahead=ahead)

    def _split(self, x: str) -> str:
        """Split activations f32 for the tile unit, once for all products that read them; return what they became."""
        pieces, split = f"{x}.pieces", SplitSpec(self._width(x))
        if pieces not in self._values:
            made = Value(pieces, TensorType("u8", ("tokens", split.record_bytes)))
            self._note(made, "tokens")
            self._values[pieces] = self._run(self._own, split, (x,), made)
        return pieces

    def _into_records(
        self, spec: GatedSpec | AttentionSpec, names: tuple[str, ...], quantize: Operation, *, ahead: str = ""
    ) -> Tensor:
        """Run a C kernel of these libraries alone, which makes the records of `quantize` too."""
        self._note(quantize.result, "tokens")
        records = self._run(self._own, spec, names, quantize.result, ahead=ahead)
        self._values[quantize.result.name] = records
        return records

    def quantize_rows(self, operation: Operation) -> Tensor:
        """Make records of activations."""
        return self._extern(operation, self._quantizer(operation), alone=self._one_row(operation))

    def _quantizer(self, operation: Operation) -> QuantizeSpec:
        return QuantizeSpec(self._width(operation.operands[0]), cast(Records, operation.text("records")))

    def add(self, operation: Operation) -> Tensor:
        """Add two values."""
        return self._rowwise(elementwise.add, operation, self._width(operation.result.name))

    def add_row(self, operation: Operation) -> Tensor:
        """Add one row of a table to every row."""
        rows = self._builder.weights[operation.weights[0]].rows
        width = self._width(operation.result.name)
        return self._rowwise(elementwise.add_row, operation, width, rows, operation.integer("index"))

    def rms_norm(self, operation: Operation) -> Tensor:
        """Normalise rows by their root mean square."""
        factory = norm.rms_norm_gain if operation.weights[0] else norm.rms_norm
        return self._rowwise(factory, operation, self._width(operation.result.name), operation.number("epsilon"))

    def layer_norm(self, operation: Operation) -> Tensor:
        """Normalise rows by mean and variance."""
        width = self._width(operation.result.name)
        return self._rowwise(norm.layer_norm, operation, width, operation.number("epsilon"))

    def select_row(self, operation: Operation) -> Tensor:
        """Copy one row."""
        dtype = _DTYPES[operation.result.type.dtype]
        shape = self._shapes[operation.result.name]
        factory = elementwise.select_row if len(shape) == 2 else elementwise.select_number
        kernel = self._builder.kernels.rows(factory, (dtype, *shape[1:]))
        return self._call(kernel, self._arguments(operation), shape, dtype)

    def slice(self, operation: Operation) -> Tensor:
        """Copy columns."""
        start, stop = operation.integer("start"), operation.integer("stop")
        width = self._width(operation.operands[0])
        return self._rowwise(elementwise.copy_columns, operation, width, start, stop - start)

    def concat(self, operation: Operation) -> Tensor:
        """Put two values side by side."""
        left, right = (self._width(name) for name in operation.operands)
        return self._rowwise(elementwise.concat, operation, left, right)

    def rope_angles(self, operation: Operation) -> Tensor:
        """Compute cosines and sines of the rows' positions."""
        half = self._width(operation.result.name) // 2
        numbers = [operation.number(key) for key in ("scale", "base", "factor", "original_context", "dynamic")]
        scale, base, factor, original, dynamic = numbers
        constants = (half, scale, base, factor, int(original), bool(dynamic))
        return self._rowwise(rope.rope_angles, operation, *constants)

    def qkv_append(self, operation: Operation) -> Tensor:
        """Prepare heads and append keys and values to the layer's cache, perhaps behind the product that makes them."""
        half = self._width(operation.operands[1]) // 2
        epsilon = operation.number("epsilon")
        spec = AppendSpec(self._cache_spec(operation), half, bool(operation.weights[0]), epsilon)
        cache, product = f"kv_{operation.integer('layer')}", self._fusion.appended.get(operation.result.name)
        if product is None:
            return self._extern(operation, spec, cache)
        weight, bias = product.weights
        both = LinearAppendSpec(product_kernel(self._builder.weights[weight], has_bias=bool(bias)), spec)
        behind = (*operation.operands[1:], *operation.weights, cache)
        names = tuple(name for name in (*product.operands, weight, bias, *behind) if name)
        return self._run(self._own, both, names, operation.result, ahead=self._next.get(product.result.name, ""))

    def cached_attention(self, operation: Operation) -> Tensor:
        """Attend to the layer's cache."""
        cache, layer = self._cache_spec(operation), f"kv_{operation.integer('layer')}"
        if not self._by_tiles(operation):
            return self._extern(operation, AttentionSpec(cache), layer)
        names, quantize = (*operation.operands, layer), self._fusion.recorded.get(operation.result.name)
        if quantize is None:
            return self._run(self._own, AttentionSpec(cache, tiles=True), names, operation.result)
        spec = AttentionSpec(cache, cast(Records, quantize.text("records")), tiles=True)
        return self._into_records(spec, names, quantize)

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
            rounded=products == {"linear_quantized"},
        )

    def qkv_span_attention(self, operation: Operation) -> Tensor:
        """Attend to the rows of the same span."""
        spec = SpanAttentionSpec(
            operation.integer("heads"), operation.integer("head_dim"), operation.number("scale")
        )
        return self._extern(operation, spec)

    def activation(self, operation: Operation) -> Tensor:
        """Apply an activation function."""
        width = self._width(operation.result.name)
        return self._rowwise(elementwise.activation, operation, width, operation.text("function"))

    def gated(self, operation: Operation) -> Tensor:
        """Multiply an activated gate with a value."""
        width = self._width(operation.result.name)
        return self._rowwise(elementwise.gated, operation, width, operation.text("function"))

    def gated_pair(self, operation: Operation) -> Tensor:
        """The same, gate and value side by side."""
        width = self._width(operation.result.name)
        return self._rowwise(elementwise.gated_pair, operation, width, operation.text("function"))

    def pool(self, operation: Operation) -> Tensor:
        """Reduce the rows of each sequence to one."""
        constants = (
            self._builder.info.max_sequences,
            self._width(operation.result.name),
            operation.text("mode"),
            bool(dict(operation.attributes)["normalize"]),
        )
        return self._simple(elementwise.pool, operation, *constants)


_EMITTERS: dict[str, Callable[[Bucket, Operation], Tensor]] = {
    "embedding": Bucket.embedding,
    "linear": Bucket.product,
    "linear_quantized": Bucket.product,
    "quantize_rows": Bucket.quantize_rows,
    "add": Bucket.add,
    "add_row": Bucket.add_row,
    "rms_norm": Bucket.rms_norm,
    "layer_norm": Bucket.layer_norm,
    "select_row": Bucket.select_row,
    "slice": Bucket.slice,
    "concat": Bucket.concat,
    "rope_angles": Bucket.rope_angles,
    "qkv_append": Bucket.qkv_append,
    "cached_attention": Bucket.cached_attention,
    "qkv_span_attention": Bucket.qkv_span_attention,
    "activation": Bucket.activation,
    "gated": Bucket.gated,
    "gated_pair": Bucket.gated_pair,
    "pool": Bucket.pool,
}
"""How each lowered operator is emitted; attention, rope and head_norm are gone by then."""
