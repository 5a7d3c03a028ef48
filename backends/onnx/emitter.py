"""Writes functions of the IR as ONNX graphs: what both flavours have in common.

Values keep the shape [..., features]: rows of decoders are [batch, tokens], those of encoders and of the head [tokens].
A flavour is a subclass with a method for each operator of `operators`, named as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyc.backends.onnx.writer import GraphWriter
from pyc.compiler.fp8 import TYPES
from pyc.compiler.ir import Function, Operation
from pyc.compiler.schemes import Float8Format


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and sines [rows, r / 2] of the angles that the rows of a step are turned by."""

    cos: str
    sin: str


@dataclass(slots=True)
class Interface:
    """The values of a graph that stand for parameters of the function, and the cache of a decoder.

    `values` are those of parameters by name; `past` the keys and values of each layer. `totals` [batch] i32 are the
    positions of each sequence with this step's, less one, and `longest` the number of the longest's, for the fused
    flavour; the standard one takes `mask` i64 [batch, positions], of ones where there is a token. `present` takes what
    becomes of the cache.
    """

    values: dict[str, str]
    past: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    totals: str = ""
    longest: str = ""
    mask: str = ""
    present: dict[int, tuple[str, str]] = field(default_factory=dict)


class Emitter:
    """Writes one function with `writer`; `leading` are the dimensions of its values before the features."""

    is_widened = False
    """Whether who runs the graph hands over f32 for what is stored as floating point of 8 bits."""

    @staticmethod
    def head_features(head_dim: int) -> int:
        """Features that a head of `head_dim` has in the cache."""
        return head_dim

    def __init__(self, writer: GraphWriter, interface: Interface, leading: tuple[str, ...]) -> None:
        self.writer, self.interface, self.leading = writer, interface, leading
        self.values = dict(interface.values)
        self.angles: dict[str, Angles] = {}
        self.function: Function | None = None

    def emit(self, function: Function) -> str:
        """Write every operation and return the value that is the function's result."""
        self.function = function
        for operation in function.operations:
            if operation.result.name not in self.values:
                made = self.written(operation)
                if made is not None:
                    self.values[operation.result.name] = made
        return self.values[function.result]

    def written(self, operation: Operation) -> str | None:
        """Write an operation and return its result; None where it has put that into `values`."""
        made: str | None = getattr(self, f"op_{operation.kind}")(operation)
        return made

    # --- what operators are made of

    def operand(self, operation: Operation, index: int = 0) -> str:
        return self.values[operation.operands[index]]

    def weight(self, operation: Operation, index: int = 0) -> str:
        return self.writer.weight(operation.weights[index])

    def features(self, operation: Operation) -> int:
        width = operation.result.type.shape[1]
        assert isinstance(width, int)
        return width

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        return self.writer.node(kind, inputs, domain=domain, **attributes)

    def width_of(self, operation: Operation, index: int = 0) -> int:
        """The features of an operand."""
        assert self.function is not None
        name = operation.operands[index]
        types = {value.name: value.type for value in self.function.parameters}
        types |= {o.result.name: o.result.type for o in self.function.operations}
        width = types[name].shape[1]
        assert isinstance(width, int)
        return width

    def number(self, value: float) -> str:
        return self.writer.constant(float(value))

    def shape(self, *dimensions: int) -> str:
        """A shape to give values; 0 keeps a dimension."""
        return self.writer.constant([*[0] * len(self.leading), *dimensions])

    def split(self, value: str, widths: tuple[int, ...]) -> tuple[str, ...]:
        names = [self.writer.new_name("Split") for _ in widths]
        return tuple(self.writer.nodes("Split", [value, self.writer.constant(widths)], names, axis=-1))

    def with_bias(self, operation: Operation, index: int, product: str) -> str:
        return self.op("Add", product, self.weight(operation, index)) if operation.weights[index] else product

    # --- operators

    def op_add(self, operation: Operation) -> str:
        return self.op("Add", self.operand(operation), self.operand(operation, 1))

    def op_add_row(self, operation: Operation) -> str:
        row = self.writer.weight_row(operation.weights[0], operation.integer("index"))
        return self.op("Add", self.operand(operation), row)

    def op_layer_norm(self, operation: Operation) -> str:
        inputs = self.operand(operation), self.weight(operation), self.weight(operation, 1)
        return self.op("LayerNormalization", *inputs, axis=-1, epsilon=operation.number("epsilon"))

    def op_rms_norm(self, operation: Operation) -> str:
        gain = self.gain(operation)
        return self.op("RMSNormalization", self.operand(operation), gain, axis=-1, epsilon=operation.number("epsilon"))

    def gain(self, operation: Operation) -> str:
        if operation.weights[0]:
            return self.weight(operation)
        return self.writer.constant(np.ones(self.features(operation), np.float32))

    def op_head_norm(self, operation: Operation) -> str:
        head_dim, width = operation.integer("head_dim"), self.features(operation)
        heads = self.op("Reshape", self.operand(operation), self.shape(width // head_dim, head_dim))
        epsilon = operation.number("epsilon")
        normed = self.op("RMSNormalization", heads, self.weight(operation), axis=-1, epsilon=epsilon)
        return self.op("Reshape", normed, self.shape(width))

    def op_slice(self, operation: Operation) -> str | None:
        """All slices of a value at once, as a Split, where they divide it."""
        assert self.function is not None
        name = operation.operands[0]
        slices = [o for o in self.function.operations if o.kind == "slice" and o.operands[0] == name]
        slices.sort(key=lambda o: o.integer("start"))
        ends = [o.integer("stop") for o in slices]
        if [0, *ends[:-1]] == [o.integer("start") for o in slices] and ends[-1] == self.width_of(operation):
            names = self.split(self.values[name], tuple(self.features(o) for o in slices))
            self.values.update({o.result.name: made for o, made in zip(slices, names, strict=True)})
            return None
        start, stop = (self.writer.constant([operation.integer(key)]) for key in ("start", "stop"))
        return self.op("Slice", self.values[name], start, stop, self.writer.constant([-1]))

    def op_concat(self, operation: Operation) -> str:
        return self.op("Concat", self.operand(operation), self.operand(operation, 1), axis=-1)

    def sliced(self, value: str, width: int) -> str:
        """The first features of a value."""
        start, stop, axis = (self.writer.constant([number]) for number in (0, width, -1))
        return self.op("Slice", value, start, stop, axis)

    def op_embedding(self, operation: Operation) -> str:
        return self.floats(self.op("Gather", self.weight(operation), self.operand(operation), axis=0), operation)

    def floats(self, value: str, operation: Operation) -> str:
        """`value`, whose elements are those of the operation's matrix, as f32."""
        return value if self.writer.stored(operation.weights[0]).dtype == "f32" else self.op("Cast", value, to=1)

    def op_float8_embedding(self, operation: Operation) -> str:
        """Rows are taken out as codes, and only these looked up: Gather takes no floating point of 8 bits."""
        codes, scales = operation.weights
        block, width = operation.integer("block"), self.features(operation)
        if self.is_widened:
            table = self.writer.widened(codes, scales, operation.text("format"), block)
            return self.op("Gather", table, self.operand(operation), axis=0)
        numbers = self.writer.constant(TYPES[float8_format(operation)].values)
        found = self.op("Cast", self.op("Gather", self.writer.weight(codes), self.operand(operation), axis=0), to=6)
        scale = self.op("Gather", self.writer.weight(scales), self.operand(operation), axis=0)
        values = self.op("Gather", numbers, found, axis=0)
        if block and width > block:
            columns = self.writer.constant(np.arange(width) // block)
            scale = self.op("Gather", scale, columns, axis=-1)
        return self.op("Mul", values, scale)

    def op_float8_linear(self, operation: Operation) -> str:
        rows = self.op("Transpose", self.float8_rows(operation), perm=[1, 0])
        return self.with_bias(operation, 2, self.op("MatMul", self.operand(operation), rows))

    def float8_rows(self, operation: Operation) -> str:
        """The matrix [N, K] f32 of an operation whose weights are of 8 bits: DequantizeLinear, or widened before."""
        codes, scales = operation.weights[:2]
        block, shape = operation.integer("block"), self.writer.stored(scales).shape
        if self.is_widened:
            return self.writer.widened(codes, scales, operation.text("format"), block)
        given = self.writer.weight(codes, dtype=operation.text("format"))
        if shape[1] == 1:
            return self.op("DequantizeLinear", given, self.writer.weight(scales, shape[:1]), axis=0)
        return self.op("DequantizeLinear", given, self.writer.weight(scales), axis=1, block_size=block)

    def op_linear(self, operation: Operation) -> str:
        rows = self.floats(self.weight(operation), operation)
        product = self.op("MatMul", self.operand(operation), self.op("Transpose", rows, perm=[1, 0]))
        return self.with_bias(operation, 1, product)

    def op_activation(self, operation: Operation) -> str:
        return self.activated(operation.text("function"), self.operand(operation))

    def op_gated(self, operation: Operation) -> str:
        gate = self.activated(operation.text("function"), self.operand(operation))
        return self.op("Mul", gate, self.operand(operation, 1))

    def activated(self, function: str, value: str) -> str:
        match function:
            case "silu":
                return self.op("Mul", value, self.op("Sigmoid", value))
            case "relu":
                return self.op("Relu", value)
            case "relu2":
                positive = self.op("Relu", value)
                return self.op("Mul", positive, positive)
            case "gelu":
                return self.op("Gelu", value, approximate="none")
            case _:
                return self.op("Gelu", value, approximate="tanh")

    def op_rope_angles(self, operation: Operation) -> None:
        """Angles of this step's rows, as two tables [rows, r / 2]; the base grows where the scaling is dynamic."""
        positions = self.op("Cast", self.operand(operation), to=1)
        column = self.op("Reshape", positions, self.writer.constant([-1, 1]))
        frequencies = self.weight(operation)
        if operation.number("dynamic"):
            frequencies = self._grown(operation, column, frequencies)
        turned = self.op("Mul", column, frequencies)
        scale = operation.number("scale")
        tables = [self.op(kind, turned) for kind in ("Cos", "Sin")]
        if scale != 1:
            tables = [self.op("Mul", table, self.number(scale)) for table in tables]
        self.angles[operation.result.name] = Angles(*tables)

    def _grown(self, operation: Operation, positions: str, frequencies: str) -> str:
        half = self.writer.stored(operation.weights[0]).shape[0]
        width, factor, original = 2 * half, operation.number("factor"), operation.number("original_context")
        past = self.op("Mul", self.op("Add", positions, self.number(1)), self.number(factor / original))
        growth = self.op("Sub", past, self.number(factor - 1))
        power = self.op("Pow", growth, self.number(width / (width - 2)))
        base = self.op("Mul", power, self.number(operation.number("base")))
        exponents = self.writer.constant((-np.arange(0, width, 2) / width).astype(np.float32))
        is_beyond = self.op("GreaterOrEqual", positions, self.number(original))
        return self.op("Where", is_beyond, self.op("Pow", base, exponents), frequencies)

    # --- encoders

    def op_span_attention(self, operation: Operation) -> str:
        """Attention of each row to the rows of its span, as a mask over all of the batch."""
        heads, head_dim = operation.integer("heads"), operation.integer("head_dim")
        if len(self.leading) == 2:
            return self._padded_attention(operation)
        by_head = self.writer.constant([-1, heads, head_dim])
        q, k, v = (self.op("Reshape", self.operand(operation, index), by_head) for index in range(3))
        q, v = (self.op("Transpose", value, perm=[1, 0, 2]) for value in (q, v))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[1, 2, 0]))
        scores = self.op("Mul", scores, self.number(operation.number("scale")))
        masked = self.op("Where", self._spans(operation), scores, self.number(float(np.finfo(np.float32).min)))
        weighted = self.op("MatMul", self.op("Softmax", masked, axis=-1), v)
        flat = self.writer.constant([-1, heads * head_dim])
        return self.op("Reshape", self.op("Transpose", weighted, perm=[1, 0, 2]), flat)

    def _padded_attention(self, operation: Operation) -> str:
        """The same for texts that are rows of a batch, padded: each attends to the tokens of its text."""
        heads, head_dim = operation.integer("heads"), operation.integer("head_dim")
        by_head = [
            self.op("Reshape", self.operand(operation, index), self.shape(heads, head_dim)) for index in range(3)
        ]
        orders = [0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]
        q, k, v = (self.op("Transpose", value, perm=order) for value, order in zip(by_head, orders, strict=True))
        scores = self.op("Mul", self.op("MatMul", q, k), self.number(operation.number("scale")))
        if "padding" not in self.values:
            tokens = self.op("Cast", self.interface.mask, to=9)
            self.values["padding"] = self.op("Unsqueeze", tokens, self.writer.constant([1, 2]))
        masked = self.op("Where", self.values["padding"], scores, self.number(float(np.finfo(np.float32).min)))
        weighted = self.op("MatMul", self.op("Softmax", masked, axis=-1), v)
        return self.op("Reshape", self.op("Transpose", weighted, perm=[0, 2, 1, 3]), self.shape(heads * head_dim))

    def _spans(self, operation: Operation) -> str:
        key = f"spans of {operation.operands[3:]}"
        if key not in self.values:
            starts, ends = self.operand(operation, 3), self.operand(operation, 4)
            self.values[key] = self._within(starts, ends, self.operand(operation))
        return self.values[key]

    def _within(self, starts: str, ends: str, rows: str) -> str:
        """Which of the rows lie in which spans: bool [spans, rows]."""
        count = self.op("Squeeze", self.op("Shape", rows, start=0, end=1))
        zero, one = (self.writer.constant(value) for value in (0, 1))
        indices = self.op("Cast", self.op("Range", zero, count, one), to=6)
        first, last = (self.op("Unsqueeze", value, self.writer.constant([1])) for value in (starts, ends))
        return self.op("And", self.op("GreaterOrEqual", indices, first), self.op("Less", indices, last))

    def op_pool(self, operation: Operation) -> str:
        """One vector a sequence; empty ones give zeros."""
        rows = self.operand(operation)
        if len(self.leading) == 2:
            vectors = self._pooled_padded(operation, rows)
        else:
            vectors = self._pooled_spans(operation, rows)
        if operation.number("normalize"):
            lengths = self.op("ReduceL2", vectors, self.writer.constant([1]), keepdims=1)
            vectors = self.op("Div", vectors, self.op("Max", lengths, self.number(1e-12)))
        return vectors

    def _pooled_padded(self, operation: Operation, rows: str) -> str:
        if operation.text("mode") == "cls":
            return self.first_rows(rows)
        tokens = self.op("Unsqueeze", self.op("Cast", self.interface.mask, to=1), self.writer.constant([2]))
        sums = self.op("ReduceSum", self.op("Mul", rows, tokens), self.writer.constant([1]), keepdims=0)
        sizes = self.op("ReduceSum", tokens, self.writer.constant([1]), keepdims=0)
        return self.op("Div", sums, self.op("Max", sizes, self.number(1)))

    def first_rows(self, rows: str) -> str:
        """The row of each text's first token, [batch, features]: padding may be in front of it."""
        tokens = self.op("Cast", self.interface.mask, to=1)
        return self.op("GatherND", rows, self.op("ArgMax", tokens, axis=1, keepdims=1), batch_dims=1)

    def _pooled_spans(self, operation: Operation, rows: str) -> str:
        starts, ends = self.operand(operation, 1), self.operand(operation, 2)
        if operation.text("mode") == "cls":
            return self.op("Gather", rows, starts, axis=0)
        within = self.op("Cast", self._within(starts, ends, rows), to=1)
        sizes = self.op("ReduceSum", within, self.writer.constant([1]), keepdims=1)
        return self.op("Div", self.op("MatMul", within, rows), self.op("Max", sizes, self.number(1)))


def float8_format(operation: Operation) -> Float8Format:
    """Return the format of an operation's codes."""
    return "e4m3" if operation.text("format") == "e4m3" else "e5m2"
