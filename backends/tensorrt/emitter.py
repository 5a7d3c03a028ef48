"""Writes functions as graphs of operators that TensorRT's ONNX parser documents, with explicit DequantizeLinear.

int8 by rows has a scale for each row, int4 one for each block. fp8 has one for the whole matrix, which is 1: those of
its rows multiply the product. What symmetric scales of TensorRT cannot say, a block's
offset, is a product of its own: of the offsets with the sums of the blocks' inputs (`tensorrt.initializers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyc.backends.onnx.standard import StandardEmitter
from pyc.backends.onnx.writer import GraphWriter, Reference
from pyc.backends.tensorrt.expressible import DOCUMENTED, place_of
from pyc.compiler.ir import Operation
from pyc.compiler.schemes import Int4Group, Int8Channel, Scheme
from pyc.compiler.storage import StoredTensor
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.tensorrt.program import Initializer


class DerivedWriter(GraphWriter):
    """Writes a graph whose initializers may be made of several tensors of the artifact."""

    def __init__(self, weights: Mapping[str, StoredTensor]) -> None:
        super().__init__(weights)
        self._stored = weights
        self._forms: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.operation: Operation | None = None
        """What is being written, for errors."""

    def nodes(
        self, kind: str, inputs: Iterable[str], outputs: Sequence[str], *, domain: str = "", **attributes: Any
    ) -> Sequence[str]:
        """Append a node; LowerError for an operator that TensorRT's parser does not document."""
        if domain or kind not in DOCUMENTED:
            raise self.inexpressible(f"TensorRT's parser documents no operator {domain or 'ONNX'} {kind}")
        made = super().nodes(kind, inputs, outputs, domain=domain, **attributes)
        if self.operation is not None:
            # What TensorRT says of a node, it says with this name.
            self._nodes[-1].name = f"{place_of(self.operation)}/{self._nodes[-1].name}"
        return made

    def inexpressible(self, why: str) -> LowerError:
        """Return the error that says where in the model something is that TensorRT has not."""
        where = f"{self.operation.kind} of {place_of(self.operation)}" if self.operation else "the graph"
        return LowerError(f"target tensorrt: {where}: {why}")

    def scheme(self, tensor: str) -> Scheme:
        """Return the scheme of the matrix that a tensor is of."""
        return self._stored[tensor].scheme

    def columns(self, tensor: str) -> int:
        """Return the inputs of that matrix."""
        return self._stored[tensor].columns

    def derived(self, form: str, tensors: tuple[str, ...], dtype: str, shape: tuple[int, ...]) -> str:
        """Return the name of an initializer that is made of `tensors`."""
        name = f"{tensors[0]}: {form}"
        self._forms[name] = form, tensors
        self._references.setdefault(name, Reference(name, tensors[0], dtype, shape))
        return name

    def initializers(self) -> tuple[Initializer, ...]:
        """Return what the graph's weights are made of."""
        found = []
        for reference in self.references():
            form, tensors = self._forms.get(reference.name, ("stored", (reference.tensor,)))
            found.append(Initializer(reference.name, form, tensors, reference.dtype, reference.shape, reference.row))
        return tuple(found)

    def serialized(self, name: str) -> bytes:
        """Return the model. Its weights have a name, a type and a shape, and no bytes: they are handed over."""
        model = self.model(name)
        for initializer in model.graph.initializer:
            if initializer.external_data:
                initializer.ClearField("external_data")
                initializer.ClearField("data_location")
        data: bytes = model.SerializeToString(deterministic=True)
        return data


class TensorRtEmitter(StandardEmitter):
    """The standard flavour, but for quantized matrices and for attention, whose cache is laid by position."""

    writer: DerivedWriter

    def written(self, operation: Operation) -> str | None:
        """Write an operation; LowerError names one that TensorRT has no operator for, and where it is."""
        self.writer.operation = operation
        if not hasattr(self, f"op_{operation.kind}"):
            raise self.writer.inexpressible(f"no operator of TensorRT stands for {operation.kind}")
        return super().written(operation)

    def op_blockwise_linear(self, operation: Operation) -> str:
        rows = self.op("Transpose", self._rows(operation), perm=[1, 0])
        product = self.op("MatMul", self.operand(operation), rows)
        if offsets := self._offsets(operation):
            blocks = self._by_block(self.operand(operation), operation)
            sums = self.op("ReduceSum", blocks, self.writer.constant([-1]), keepdims=0)
            added = self.op("MatMul", sums, self.op("Transpose", offsets, perm=[1, 0]))
            product = self.op("Add", product, added)
        return self.with_bias(operation, 3, product)

    def op_blockwise_embedding(self, operation: Operation) -> str:
        ids = self.operand(operation)
        found = self.op("Gather", self._rows(operation), ids, axis=0)
        if offsets := self._offsets(operation):
            added = self.op("Unsqueeze", self.op("Gather", offsets, ids, axis=0), self.writer.constant([-1]))
            blocks = self.op("Add", self._by_block(found, operation), added)
            found = self.op("Reshape", blocks, self.shape(self.features(operation)))
        return found

    def op_float8_linear(self, operation: Operation) -> str:
        rows = self.op("Transpose", self.float8_rows(operation), perm=[1, 0])
        product = self.op("MatMul", self.operand(operation), rows)
        scales = self.writer.weight(operation.weights[1], self.writer.stored(operation.weights[1]).shape[:1])
        return self.with_bias(operation, 2, self.op("Mul", product, scales))

    def op_float8_embedding(self, operation: Operation) -> str:
        ids = self.operand(operation)
        found = self.op("Gather", self.float8_rows(operation), ids, axis=0)
        return self.op("Mul", found, self.op("Gather", self.writer.weight(operation.weights[1]), ids, axis=0))

    def float8_rows(self, operation: Operation) -> str:
        """The numbers of the codes [N, K] f32; the scale of its row multiplies a result."""
        codes = operation.weights[0]
        if operation.text("format") != "e4m3" or operation.integer("block"):
            raise self._refused(self.writer.scheme(codes))
        one = self.writer.constant(1.0)
        return self.op("DequantizeLinear", self.writer.weight(codes, dtype="e4m3"), one)

    def _refused(self, scheme: Scheme) -> LowerError:
        return self.writer.inexpressible(
            f"{scheme.name} cannot be expressed: TensorRT dequantizes int4 in blocks, int8 and e4m3 by rows alone; "
            "set its scheme to int8, fp8 or int4-g32 (quantize.scheme, quantize.embeddings, quantize.overrides), "
            "or leave the target out"
        )

    def _rows(self, operation: Operation) -> str:
        """The matrix [N, K] f32, without its offsets."""
        codes, scales = operation.weights[:2]
        rows, columns = self.writer.stored(codes).shape[0], self.writer.columns(codes)
        match self.writer.scheme(codes):
            case Int8Channel():
                inputs = [
                    self.writer.derived("int8-codes", (codes,), "i8", (rows, columns)),
                    self.writer.derived("int8-scales", (scales,), "f32", (rows,)),
                ]
                return self.op("DequantizeLinear", *inputs, axis=0)
            case Int4Group():
                inputs = [
                    self.writer.derived("int4-codes", (codes, scales), "i4", (rows, columns)),
                    self.writer.derived("int4-scales", (scales,), "f32", self.writer.stored(scales).shape),
                ]
                return self.op("DequantizeLinear", *inputs, axis=1, block_size=operation.integer("block"))
            case scheme:
                raise self._refused(scheme)

    def _offsets(self, operation: Operation) -> str:
        """The offsets of the matrix, f32 [N, blocks]; "" where it has none."""
        codes, scales, zero_points = operation.weights[:3]
        if not isinstance(self.writer.scheme(codes), Int4Group):
            return ""
        tensors = (scales, zero_points) if zero_points else (scales,)
        return self.writer.derived("int4-offsets", tensors, "f32", self.writer.stored(scales).shape)

    def _by_block(self, value: str, operation: Operation) -> str:
        """`value` [..., K] as [..., blocks, block]."""
        block = operation.integer("block")
        columns = self.writer.columns(operation.weights[0])
        return self.op("Reshape", value, self.shape(columns // block, block))

    def first_rows(self, rows: str) -> str:
        """Those of the first column: the executor pads behind texts, and the parser's GatherND and ArgMax are not
        among what was read."""
        return self.op("Gather", rows, self.writer.constant(0), axis=1)

    def op_attention(self, operation: Operation) -> str:
        """Attention over the cache and this step's rows, which are results: who runs it puts them into the cache."""
        heads, kv_heads = operation.integer("heads"), operation.integer("kv_heads")
        head_dim, layer = operation.integer("head_dim"), operation.integer("layer")
        counts = heads, kv_heads, kv_heads
        split = [self._heads(self.operand(operation, index), count, head_dim) for index, count in enumerate(counts)]
        seen = [
            self.op("Concat", past, new, axis=2)
            for past, new in zip(self.interface.past[layer], split[1:], strict=True)
        ]
        self.interface.present[layer] = split[1], split[2]
        attended = self.op("Attention", split[0], *seen, self._mask(operation), scale=operation.number("scale"))
        flat = self.op("Transpose", attended, perm=[0, 2, 1, 3])
        return self.op("Reshape", flat, self.shape(heads * head_dim))

    def _mask(self, operation: Operation) -> str:
        """What a row sees: bool [batch, 1, tokens, capacity + tokens].

        Position p of a sequence lies at p of the cache, which holds those before the step's first row. Behind them are
        the rows of the step. A row sees itself.
        """
        window = operation.integer("window")
        key = f"mask of window {window}"
        if key not in self.values:
            if "row positions" not in self.values:
                self._positions_of_all()
            rows, columns = self.values["row positions"], self.values["all positions"]
            seen = self.op("And", self.values["is written"], self.op("LessOrEqual", columns, rows))
            if window:
                first = self.op("Sub", rows, self.writer.constant(window - 1))
                seen = self.op("And", seen, self.op("GreaterOrEqual", columns, first))
            self.values[key] = self.op("Unsqueeze", seen, self.writer.constant([1]))
        return self.values[key]

    def _positions_of_all(self) -> None:
        """Positions of rows [batch, tokens, 1], of cache and step [batch, 1, capacity + tokens], and which of these are
        there: those of the step, and those of the cache before the step's first."""
        positions = self.values["positions"]
        zero, one = (self.writer.constant(value) for value in (0, 1))
        capacity = self.op("Squeeze", self.op("Shape", self.interface.past[0][0], start=2, end=3))
        places = self.op("Unsqueeze", self.op("Range", zero, capacity, one), self.writer.constant([0]))
        first = self.op("Slice", positions, *(self.writer.constant([value]) for value in (0, 1, 1)))
        before = self.op("Less", places, first)
        in_step = self.op("GreaterOrEqual", positions, self.writer.constant(0))
        there = self.op("Concat", before, in_step, axis=1)
        # As many rows as there are sequences: a sum with zeros has them.
        by_sequence = self.op("Add", places, self.op("Mul", first, zero))
        columns = self.op("Concat", by_sequence, positions, axis=1)
        self.values["row positions"] = self.op("Unsqueeze", positions, self.writer.constant([2]))
        self.values["all positions"] = self.op("Unsqueeze", columns, self.writer.constant([1]))
        self.values["is written"] = self.op("Unsqueeze", there, self.writer.constant([1]))
