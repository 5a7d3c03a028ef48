"""Interprets a graph of logical operators over all tokens of a text at once, in f32: what calibration looks at.

Windows are sequences of their own, of one length, behind the virtual tokens of a module that has some. A product takes
ROWS_AT_A_TIME rows of its weight at once, which the caller gives: exact ones, rounded ones, or those of a few matrices
replaced. Memory: the values that are still to be read, of all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.compiler.evaluate import evaluate_stored, stored_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.interpret import LOGICAL_MEANINGS, softmax
from pyc.compiler.ir import Module, Operation
from pyc.compiler.quantization import QuantizedRows, StoredRows, dequantize_rows
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Quantized, Scheme
from pyc.compiler.weights import Expression
from pyc.passes.interpretation import tiled_products
from pyc.runtime.errors import QuantizeError

ROWS_AT_A_TIME = 16384
"""Rows of a matrix that are rounded, or multiplied by, at once: a head's are many."""

Array = NDArray[np.generic]
Values = dict[str, Array]
RowsOf = Callable[[str, int, int], Floats]
"""The values of rows [start, stop) of a weight."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The tokens of a calibration text, i32 [windows, tokens], and what a build records of where they come from."""

    ids: NDArray[np.int32]
    digest: str

    @property
    def key(self) -> str:
        """What stands for the tokens in keys of the build cache."""
        return blake3(repr(self.ids.shape).encode() + self.ids.astype("<i4").tobytes()).hexdigest()

    def followed_by(self, others: Windows) -> Windows:
        """Return these windows and then others of the same length."""
        return Windows(np.concatenate([self.ids, others.ids]), f"{self.digest} {others.digest}")


class TextInterpreter:
    """What the operators of a module mean, over all windows."""

    def __init__(self, module: Module, windows: Windows, workers: int = 1) -> None:
        """`workers` threads share a product."""
        self.module, self.windows, self._workers = module, windows, workers
        self.prefix = _prefix_of(module)

    def inputs(self) -> Values:
        """Return the parameters of the functions that read tokens."""
        count, length = self.windows.ids.shape
        before = 0 if self.prefix is None else self.prefix.shape[3]
        starts = np.repeat(np.arange(count) * length, length)
        return {
            "token_ids": self.windows.ids.reshape(-1).astype(np.int64),
            "positions": np.tile(np.arange(before, before + length), count),
            "span_start": starts,
            "span_end": starts + length,
            "seq_start": np.arange(count) * length,
            "seq_end": (np.arange(count) + 1) * length,
        }

    def value(self, operation: Operation, x: Sequence[Array | None], rows_of: RowsOf) -> Array:
        """Return what an operation makes of its operands, f32 [tokens of all windows, ...]."""
        match operation.kind:
            case "linear":
                return self._product(operation, floats(x[0]), rows_of)
            case "embedding":
                return self._embedding(operation, x[0], rows_of)
            case "attention" | "span_attention":
                return self._attention(operation, [floats(value) for value in x[:3]])
            case "rope_angles":  # windows have the same positions
                first = _some(x[0])[: self.windows.ids.shape[1]]
                rows = _meaning(operation, [first], self._whole(operation, rows_of))
                return np.tile(rows, (self.windows.ids.shape[0], 1))
            case _:
                return _meaning(operation, x, self._whole(operation, rows_of))

    def _whole(self, operation: Operation, rows_of: RowsOf) -> list[Floats | None]:
        weights = self.module.weights
        return [rows_of(name, 0, weights[name].shape[0]) if name else None for name in operation.weights]

    def _product(self, operation: Operation, x: Floats, rows_of: RowsOf) -> Floats:
        name, bias = operation.weights
        rows = self.module.weights[name].shape[0]
        result = np.empty((len(x), rows), np.float32)
        for start in range(0, rows, ROWS_AT_A_TIME):
            stop = min(start + ROWS_AT_A_TIME, rows)
            tiled_products.product_into(result[:, start:stop], x, rows_of(name, start, stop), self._workers)
        if bias:
            result += rows_of(bias, 0, rows)
        return result

    def _embedding(self, operation: Operation, ids: Array | None, rows_of: RowsOf) -> Floats:
        name = operation.weights[0]
        rows, columns = self.module.weights[name].shape
        numbers = np.maximum(_some(ids).astype(np.int64), 0)
        found = np.empty((len(numbers), columns), np.float32)
        for start in range(0, rows, ROWS_AT_A_TIME):
            wanted = np.flatnonzero((numbers >= start) & (numbers < start + ROWS_AT_A_TIME))
            if wanted.size:
                table = rows_of(name, start, min(start + ROWS_AT_A_TIME, rows))
                found[wanted] = table[numbers[wanted] - start]
        return found

    def _attention(self, operation: Operation, x: Sequence[Floats]) -> Floats:
        """Attention of each window to itself: causal for decoders, whole for encoders."""
        head_dim, heads = operation.integer("head_dim"), operation.integer("heads")
        length = self.windows.ids.shape[1]
        seen, groups, prefix = None, 1, None
        if operation.kind == "attention":
            prefix = None if self.prefix is None else self.prefix[operation.integer("layer")]
            before = 0 if prefix is None else prefix.shape[2]
            rows, columns = np.arange(before, before + length)[:, None], np.arange(before + length)[None]
            window = operation.integer("window")
            seen = (columns <= rows) & ((columns > rows - window) if window else True)
            groups = heads // operation.integer("kv_heads")
        result = np.empty((len(x[0]), heads * head_dim), np.float32)
        for start in range(0, len(x[0]), length):
            by_head = [value[start : start + length].reshape(length, -1, head_dim).swapaxes(0, 1) for value in x]
            q, k, v = (np.ascontiguousarray(value) for value in by_head)
            if prefix is not None:
                k, v = np.concatenate([prefix[0], k], axis=1), np.concatenate([prefix[1], v], axis=1)
            k, v = (np.repeat(value, groups, axis=0) for value in (k, v))
            scores = q @ np.ascontiguousarray(k.swapaxes(1, 2))
            scores *= np.float32(operation.number("scale"))
            if seen is not None:
                scores = np.where(seen, scores, np.float32(-np.inf))
            weights = softmax(cast("Any", scores))
            result[start : start + length] = (weights @ v).swapaxes(0, 1).reshape(length, -1)
        return result


def _prefix_of(module: Module) -> Floats | None:
    """Return the prefix of a module f32 [layers, 2, kv_heads, tokens, head_dim], None without one."""
    cache = module.info.kv_cache
    if module.prefix is None or cache is None or not module.prefix.values:
        return None
    shape = (cache.layers, 2, cache.heads, module.prefix.tokens, cache.head_dim)
    return np.frombuffer(module.prefix.values, "<f4").reshape(shape)


def prefix_digest(module: Module) -> tuple[str, ...]:
    """Return what stands for the prefix of a module in the cache's keys, nothing without one."""
    return () if module.prefix is None else (blake3(module.prefix.values).hexdigest(),)


def stored_rows(name: str, expression: Expression, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return the values of rows of the weight `name` as its scheme stores them; QuantizeError names it."""
    try:
        return stored_values(evaluate_stored(expression, start, stop, files), stored_scheme(expression))
    except QuantizeError as error:
        raise QuantizeError(f"quantize: {name}: {error}") from error


def stored_values(stored: StoredRows, scheme: Scheme) -> Floats:
    """Return what stored rows stand for."""
    if isinstance(stored, QuantizedRows):
        return dequantize_rows(stored, quantized(scheme))
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float32, copy=False)


def quantized(scheme: Scheme) -> Quantized:
    """Return a scheme that is known to quantize."""
    assert isinstance(scheme, Quantized)
    return scheme


def _meaning(operation: Operation, x: Sequence[Array | None], w: Sequence[Floats | None]) -> Floats:
    operands: list[Any] = [_some(value) for value in x]
    weights: list[Any] = list(w)
    found: Any = LOGICAL_MEANINGS[operation.kind](operation, operands, weights)
    return np.asarray(found, np.float32)


def _some(value: Array | None) -> Array:
    assert value is not None
    return value


def floats(value: Array | None) -> Floats:
    """Return a value that is there as f32."""
    return _some(value).astype(np.float32, copy=False)
