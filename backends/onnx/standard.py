"""The standard flavour: operators of ONNX alone, with quantized matrices as DequantizeLinear in blocks.

Codes are signed where zero stands in their middle (int4, int8), and unsigned beside zero points (uint4); those of mxfp4
and nvfp4 may be FLOAT4E2M1 (the flavour float4), except in tables, which Gather reads. Scales of int4
have both signs, which TensorRT does not take: `backends.tensorrt` says the same in its terms.
"""

from __future__ import annotations

from typing import Any

from pyc.backends.onnx.emitter import Emitter
from pyc.compiler.ir import Operation


class StandardEmitter(Emitter):
    """DequantizeLinear, Attention, RotaryEmbedding, RMSNormalization of opset 23."""

    def op_blockwise_linear(self, operation: Operation) -> str:
        rows = self._dequantized(operation)
        width = self.width_of(operation)
        if self._padded_width(operation) != width:
            rows = self.sliced(rows, width)
        product = self.op("MatMul", self.operand(operation), self.op("Transpose", rows, perm=[1, 0]))
        return self.with_bias(operation, 3, product)

    def _padded_width(self, operation: Operation) -> int:
        return self.writer.stored(operation.weights[0]).shape[1] * operation.integer("block")

    def _dequantized(self, operation: Operation) -> str:
        """The matrix [N, blocks * block] f32."""
        codes, scales, zero_points = operation.weights[:3]
        bits, rows = operation.integer("bits"), self.writer.stored(codes).shape[0]
        if self.writer.is_float4(codes):
            numbers = self.writer.weight(codes, (rows, self._padded_width(operation)), "e2m1")
            block = operation.integer("block")
            return self.op("DequantizeLinear", numbers, self.writer.doubled(scales), axis=1, block_size=block)
        dtype = f"u{bits}" if zero_points else f"i{bits}"
        inputs = [self.writer.weight(codes, (rows, self._padded_width(operation)), dtype), self.writer.weight(scales)]
        if zero_points:
            inputs.append(self.writer.weight(zero_points, self.writer.stored(scales).shape, "u4"))
        return self.op("DequantizeLinear", *inputs, axis=1, block_size=operation.integer("block"))

    def op_blockwise_embedding(self, operation: Operation) -> str:
        """Rows are taken out as codes, and only these dequantized: Gather takes no elements of four bits."""
        codes, scales, zero_points = operation.weights
        rows, blocks, size = self.writer.stored(codes).shape
        block = operation.integer("block")
        ids = self.op("Reshape", self.operand(operation), self.writer.constant([-1]))
        table = self.writer.weight(codes, (rows, blocks * size))
        found = self.op("Cast", self.op("Gather", table, ids, axis=0), to=1)
        if operation.integer("bits") == 4:
            found = self._nibbles(found, blocks * block)
        found = self.op("Reshape", found, self.writer.constant([-1, blocks, block]))
        found = self.op("Sub", found, self._zero_points(zero_points, ids, blocks, operation.integer("bits")))
        scale = self.op("Gather", self.writer.weight(scales), ids, axis=0)
        value = self.op("Mul", found, self.op("Unsqueeze", scale, self.writer.constant([2])))
        value = self.op("Reshape", value, self.writer.constant([-1, blocks * block]))
        width = self.features(operation)
        value = value if blocks * block == width else self.sliced(value, width)
        if len(self.leading) == 1:
            return value
        shape = self.op("Concat", self.op("Shape", self.operand(operation)), self.writer.constant([width]), axis=0)
        return self.op("Reshape", value, shape)

    def _nibbles(self, found: str, width: int) -> str:
        """The halves of bytes [rows, width / 2] as [rows, width], the lower first; all are f32."""
        high = self.op("Floor", self.op("Mul", found, self.number(1 / 16)))
        low = self.op("Sub", found, self.op("Mul", high, self.number(16)))
        pairs = [self.op("Unsqueeze", half, self.writer.constant([2])) for half in (low, high)]
        return self.op("Reshape", self.op("Concat", *pairs, axis=2), self.writer.constant([-1, width]))

    def _zero_points(self, zero_points: str, ids: str, blocks: int, bits: int) -> str:
        if not zero_points:
            return self.number(1 << bits - 1)
        found = self.op("Cast", self.op("Gather", self.writer.weight(zero_points), ids, axis=0), to=1)
        halves = 2 * self.writer.stored(zero_points).shape[1]
        points = self._nibbles(found, halves)
        points = points if halves == blocks else self.sliced(points, blocks)
        return self.op("Unsqueeze", points, self.writer.constant([2]))

    def op_rope(self, operation: Operation) -> str:
        angles, turned = self.angles[operation.operands[1]], self.width_of(operation, 1)
        head_dim = operation.integer("head_dim")
        tables = [self._by_row(table, turned // 2) for table in (angles.cos, angles.sin)]
        heads = self.features(operation) // head_dim
        partial: dict[str, Any] = {"rotary_embedding_dim": turned} if turned != head_dim else {}
        return self.op("RotaryEmbedding", self.operand(operation), *tables, num_heads=heads, **partial)

    def _by_row(self, table: str, width: int) -> str:
        """A table [batch * tokens, width] as [batch, tokens, width]."""
        key = f"{table} by row"
        if key not in self.values:
            shape = self.op("Shape", self.values["token_ids"])
            shape = self.op("Concat", shape, self.writer.constant([width]), axis=0)
            self.values[key] = self.op("Reshape", table, shape)
        return self.values[key]

    def op_attention(self, operation: Operation) -> str:
        """Attention over the cache with this step's rows behind it, and a mask of what each row may see."""
        heads, kv_heads = operation.integer("heads"), operation.integer("kv_heads")
        head_dim, layer = operation.integer("head_dim"), operation.integer("layer")
        counts = heads, kv_heads, kv_heads
        split = [self._heads(self.operand(operation, index), count, head_dim) for index, count in enumerate(counts)]
        present = tuple(
            self.writer.node("Concat", [past, new], name=f"present.{layer}.{kind}", axis=2)
            for kind, past, new in zip(("key", "value"), self.interface.past[layer], split[1:], strict=True)
        )
        self.interface.present[layer] = present[0], present[1]
        mask = self._mask(operation)
        attended = self.op("Attention", split[0], *present, mask, scale=operation.number("scale"))
        flat = self.op("Transpose", attended, perm=[0, 2, 1, 3])
        return self.op("Reshape", flat, self.shape(heads * head_dim))

    def _heads(self, value: str, heads: int, head_dim: int) -> str:
        by_head = self.op("Reshape", value, self.shape(heads, head_dim))
        return self.op("Transpose", by_head, perm=[0, 2, 1, 3])

    def _mask(self, operation: Operation) -> str:
        """Which positions of the cache a row sees: bool [batch, 1, tokens, positions]."""
        window = operation.integer("window")
        key = f"mask of window {window}"
        if key not in self.values:
            if "row columns" not in self.values:
                self.values["row columns"], self.values["positions seen"] = self._positions()
            rows, columns = self.values["row columns"], self.values["positions seen"]
            seen = self.op("LessOrEqual", columns, rows)
            if window:
                first = self.op("Sub", rows, self.writer.constant(window - 1))
                seen = self.op("And", seen, self.op("GreaterOrEqual", columns, first))
            tokens = self.op("Cast", self.interface.mask, to=9)
            self.values[key] = self.op("And", seen, self.op("Unsqueeze", tokens, self.writer.constant([1, 2])))
        return self.values[key]

    def _positions(self) -> tuple[str, str]:
        """Where this step's rows lie in the cache, [tokens, 1], and the positions of that, [positions], as i64."""
        zero, one = (self.writer.constant(value) for value in (0, 1))
        total = self.op("Squeeze", self.op("Shape", self.interface.mask, start=1, end=2))
        tokens = self.op("Squeeze", self.op("Shape", self.values["token_ids"], start=1, end=2))
        rows = self.op("Range", self.op("Sub", total, tokens), total, one)
        return self.op("Unsqueeze", rows, self.writer.constant([1])), self.op("Range", zero, total, one)
