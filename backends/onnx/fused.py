"""The fused flavour: ONNX Runtime's own operators (domain com.microsoft) where they stand for several."""

from __future__ import annotations

from pyc.backends.onnx.emitter import Emitter
from pyc.backends.onnx.writer import CONTRIB
from pyc.compiler.ir import Operation
from pyc.runtime.host.rounding import round_up

HEAD_MULTIPLE = 8
"""Features of a head that GroupQueryAttention takes are a multiple of this; others are padded with zeros."""

_ACCURACY_LEVELS = {"f32": 1, "int8": 4}
"""What MatMulNBits calls the type that it rounds rows to."""


def padded_head(head_dim: int) -> int:
    """Return the features that a head has in the cache."""
    return round_up(head_dim, HEAD_MULTIPLE)


class FusedEmitter(Emitter):
    """MatMulNBits, GatherBlockQuantized, GroupQueryAttention, RotaryEmbedding, SkipSimplifiedLayerNormalization."""

    @staticmethod
    def head_features(head_dim: int) -> int:
        """Features that a head of `head_dim` has in the cache."""
        return padded_head(head_dim)

    def op_linear(self, operation: Operation) -> str:
        rows = self.writer.weight(operation.weights[0], dtype="f32")
        product = self.op("FusedMatMul", self.operand(operation), rows, domain=CONTRIB, transB=1)
        width = self.features(operation)
        self.writer.known(product, "f32", (*self.leading, width))
        return self.with_bias(operation, 1, product)

    def op_float8_linear(self, operation: Operation) -> str:
        rows = self.float8_rows(operation)
        product = self.op("FusedMatMul", self.operand(operation), rows, domain=CONTRIB, transB=1)
        self.writer.known(product, "f32", (*self.leading, self.features(operation)))
        return self.with_bias(operation, 2, product)

    def op_blockwise_linear(self, operation: Operation) -> str:
        codes, scales, zero_points, bias = operation.weights
        weights = [self.writer.weight(name) if name else "" for name in (codes, scales, zero_points)]
        width = self.features(operation)
        product = self.op(
            "MatMulNBits",
            self.operand(operation),
            *weights,
            "",
            self.writer.weight(bias) if bias else "",
            domain=CONTRIB,
            K=self.width_of(operation),
            N=width,
            bits=operation.integer("bits"),
            block_size=operation.integer("block"),
            accuracy_level=_ACCURACY_LEVELS[operation.text("activations")],
        )
        self.writer.known(product, "f32", (*self.leading, width))
        return product

    def op_blockwise_embedding(self, operation: Operation) -> str:
        codes, scales, zero_points = operation.weights
        rows, blocks, size = self.writer.stored(codes).shape
        width = self.features(operation)
        table = self.writer.weight(codes, (rows, blocks * size))
        weights = [self.writer.weight(name) if name else "" for name in (scales, zero_points)]
        bits, block = operation.integer("bits"), operation.integer("block")
        value = self.op(
            "GatherBlockQuantized",
            table,
            self.operand(operation),
            *weights,
            domain=CONTRIB,
            bits=bits,
            block_size=block,
            gather_axis=0,
            quantize_axis=1,
        )
        padded = blocks * block
        self.writer.known(value, "f32", (*self.leading, padded))
        return value if padded == width else self.sliced(value, width)

    def op_add(self, operation: Operation) -> str:
        """With the norm behind it, if one reads the sum."""
        assert self.function is not None
        norms = [o for o in self.function.users().get(operation.result.name, ()) if o.kind == "rms_norm"]
        if not norms:
            return super().op_add(operation)
        norm = norms[0]
        operands = self.operand(operation), self.operand(operation, 1), self.gain(norm)
        normed, total = self.writer.new_name("normed"), self.writer.new_name("sum")
        self.writer.nodes(
            "SkipSimplifiedLayerNormalization",
            operands,
            [normed, "", "", total],
            domain=CONTRIB,
            epsilon=norm.number("epsilon"),
        )
        width = self.features(operation)
        for name in (normed, total):
            self.writer.known(name, "f32", (*self.leading, width))
        self.values[norm.result.name] = normed
        return total

    def op_rope(self, operation: Operation) -> str:
        angles, turned = self.angles[operation.operands[1]], self.width_of(operation, 1)
        head_dim = operation.integer("head_dim")
        inputs = self.operand(operation), self._row_numbers(), angles.cos, angles.sin
        heads = self.features(operation) // head_dim
        partial = {"rotary_embedding_dim": turned} if turned != head_dim else {}
        result = self.op("RotaryEmbedding", *inputs, domain=CONTRIB, num_heads=heads, **partial)
        self.writer.known(result, "f32", (*self.leading, self.features(operation)))
        return result

    def _row_numbers(self) -> str:
        """The number of each row [batch, tokens] among the rows of the step: where its angles are in the tables."""
        key = "row numbers"
        if key not in self.values:
            ids = self.values["token_ids"]
            zero, one = (self.writer.constant(value) for value in (0, 1))
            numbers = self.op("Range", zero, self.op("Size", ids), one)
            self.values[key] = self.op("Reshape", numbers, self.op("Shape", ids))
        return self.values[key]

    def op_attention(self, operation: Operation) -> str:
        heads, kv_heads = operation.integer("heads"), operation.integer("kv_heads")
        head_dim, layer = operation.integer("head_dim"), operation.integer("layer")
        width = padded_head(head_dim)
        counts = heads, kv_heads, kv_heads
        q, k, v = (self._padded(self.operand(operation, index), count, head_dim) for index, count in enumerate(counts))
        result = self.writer.new_name("attention")
        present = f"present.{layer}.key", f"present.{layer}.value"
        window = operation.integer("window")
        self.writer.nodes(
            "GroupQueryAttention",
            [q, k, v, *self.interface.past[layer], self.interface.totals, self.interface.longest],
            [result, *present],
            domain=CONTRIB,
            num_heads=heads,
            kv_num_heads=kv_heads,
            scale=operation.number("scale"),
            local_window_size=window or -1,
        )
        self.interface.present[layer] = present
        self.writer.known(result, "f32", (*self.leading, heads * width))
        if width == head_dim:
            return result
        by_head = self.op("Reshape", result, self.shape(heads, width))
        return self.op("Reshape", self.sliced(by_head, head_dim), self.shape(heads * head_dim))

    def _padded(self, value: str, heads: int, head_dim: int) -> str:
        missing = padded_head(head_dim) - head_dim
        if not missing:
            return value
        by_head = self.op("Reshape", value, self.shape(heads, head_dim))
        wider = self.op("Pad", by_head, self.writer.constant([0, missing]), "", self.writer.constant([-1]))
        return self.op("Reshape", wider, self.shape(heads * (head_dim + missing)))


class ProgramEmitter(FusedEmitter):
    """That of an artifact's programs, whose executor (`runtime.executors.onnx`) widens floating point of 8 bits."""

    is_widened = True
