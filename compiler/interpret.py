"""Interprets the IR in numpy: what a graph means, one operator after another, with no thought of speed.

Values are float64, or float32 where that is asked for. A tap sees the name and the array of every value as it is
computed, which is how activations are observed. Weights are handed in as arrays: how they come about is not the
interpreter's matter. The logical operators are here; a backend says what its own mean (`backends.cpu.meanings`).

The key-value cache is an array a layer for keys and one for values, [positions, kv_heads, head_dim], addressed through
the block table as compiled code does it: position p of a sequence lies at block_table[sequence, p // b] * b + p % b,
b being the positions of a block. It grows with what is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.ir import Graph, Operation
from pyc.compiler.operators import OPERATORS

Floats = NDArray[np.float64]
"""Arrays of floating point, of either width."""
Integers = NDArray[np.int64]
Given = Mapping[str, NDArray[np.generic]]
Tap = Callable[[str, Floats], None]
Operands = Sequence[Floats]
Weights = Sequence[Floats | None]
Meaning = Callable[[Operation, Operands, Weights], Floats | tuple[Floats, ...]]
"""What an operator makes of operands, and of weights, of which absent ones are None: its results."""

SHORTEST_VECTOR = 1e-12
"""A pooled vector is divided by its length, and by no less than this."""


class PagedCache:
    """Keys and values of every layer, of blocks of `block_tokens` positions; see the module's head."""

    def __init__(self, block_tokens: int, dtype: type[np.floating]) -> None:
        self._block_tokens, self._dtype = block_tokens, dtype
        self._layers: dict[int, tuple[Floats, Floats]] = {}

    def append(self, operation: Operation, k: Floats, v: Floats, rows_of: Operands) -> None:
        """Write keys and values [T, kv_heads * d]; `rows_of` are positions, sequences and block table of the rows."""
        positions, sequences, table = (cast("Integers", value) for value in rows_of)
        shape = operation.integer("kv_heads"), operation.integer("head_dim")
        rows = np.flatnonzero(positions >= 0)
        places = np.array([self._places(table[sequences[row]], positions[row : row + 1])[0] for row in rows], np.int64)
        keys, values = self._layer(operation.integer("layer"), int(places.max(initial=-1)) + 1, shape)
        keys[places], values[places] = (heads_of(x, shape[1])[rows] for x in (k, v))

    def attend(self, operation: Operation, queries: Floats, rows_of: Operands) -> Floats:
        """Return the attention of queries [T, heads * d] to the window before each."""
        positions, sequences, table = (cast("Integers", value) for value in rows_of)
        shape, window = (operation.integer("kv_heads"), operation.integer("head_dim")), operation.integer("window")
        q, (keys, values) = heads_of(queries, shape[1]), self._layer(operation.integer("layer"), 0, shape)
        result = np.zeros_like(q)
        for row in np.flatnonzero(positions >= 0):
            first = max(0, positions[row] - window + 1) if window else 0
            seen = self._places(table[sequences[row]], np.arange(first, positions[row] + 1))
            grouped = q[row].reshape(shape[0], -1, shape[1])
            scores = np.einsum("hgd,thd->hgt", grouped, keys[seen]) * operation.number("scale")
            result[row] = np.einsum("hgt,thd->hgd", softmax(scores), values[seen]).reshape(q[row].shape)
        return _flat(result)

    def attention(self, operation: Operation, x: Operands, w: Weights) -> Floats:
        """Append the rows to the cache of the layer, then attend to it."""
        self.append(operation, x[1], x[2], x[3:])
        return self.attend(operation, x[0], x[3:])

    def _places(self, blocks: Integers, positions: Integers) -> Integers:
        """Return where positions of a sequence, whose row of the block table is `blocks`, lie in a cache."""
        return blocks[positions // self._block_tokens] * self._block_tokens + positions % self._block_tokens

    def _layer(self, layer: int, positions: int, shape: tuple[int, int]) -> tuple[Floats, Floats]:
        """Return the keys and the values of a layer, with room for `positions`."""
        nothing = cast("Floats", np.zeros((0, *shape), self._dtype))
        keys, values = self._layers.get(layer, (nothing, nothing))
        if len(keys) < positions:
            more = cast("Floats", np.zeros((2 * positions - len(keys), *shape), self._dtype))
            keys, values = np.concatenate([keys, more]), np.concatenate([values, more])
            self._layers[layer] = keys, values
        return keys, values


class Interpreter:
    """Runs the functions of a graph over `weights`, keeping the key-value cache from run to run.

    `block_tokens` are the positions of a cache block; `meanings` gives those of operators beside the logical ones,
    which may read and write the cache.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Given,
        *,
        block_tokens: int = 64,
        is_float32: bool = False,
        tap: Tap | None = None,
        meanings: Callable[[PagedCache], Mapping[str, Meaning]] = lambda cache: {},
    ) -> None:
        self._graph, self._tap = graph, tap
        self._dtype = np.float32 if is_float32 else np.float64
        self._weights = {name: self._widened(weight) for name, weight in weights.items()}
        cache = PagedCache(block_tokens, self._dtype)
        self._meanings: dict[str, Meaning] = {**LOGICAL_MEANINGS, "attention": cache.attention, **meanings(cache)}
        assert self._meanings.keys() >= OPERATORS.keys()

    def run(self, name: str, inputs: Given, version: str = "") -> Floats:
        """Return the result of one function, or of a version of it; `inputs` are its parameters by name.

        Rows of position -1 are padding, and what they give means nothing.
        """
        function = self._graph.function(name, version)
        values = {value.name: self._widened(np.asarray(inputs[value.name])) for value in function.parameters}
        for operation in function.operations:
            operands = [values[operand] for operand in operation.operands]
            weights = [self._weights[weight] if weight else None for weight in operation.weights]
            made = self._meanings[operation.kind](operation, operands, weights)
            for result, array in zip(operation.results, made if isinstance(made, tuple) else (made,), strict=True):
                values[result.name] = self._widened(array)
                if self._tap is not None:
                    self._tap(result.name, values[result.name])
        return values[function.result]

    def _widened(self, value: NDArray[np.generic]) -> Floats:
        """Return numbers in the interpreter's dtype; integers are left as they are."""
        return cast("Floats", value if value.dtype.kind == "i" else value.astype(self._dtype, copy=False))


def activated(function: str, x: Floats) -> Floats:
    """Return an activation of `operators.ACTIVATIONS`, elementwise.

    silu x / (1 + e^-x); relu2 max(x, 0)^2; gelu x/2 (1 + erf(x/sqrt 2));
    gelu_tanh x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    """
    match function:
        case "silu":
            with np.errstate(over="ignore"):
                return cast("Floats", x / (1 + np.exp(-x)))
        case "relu":
            return np.maximum(x, 0)
        case "relu2":
            return cast("Floats", np.square(np.maximum(x, 0)))
        case "gelu":
            return cast("Floats", x * 0.5 * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))))
        case "gelu_tanh":
            return cast("Floats", x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
        case _:
            raise AssertionError(f"no activation is called {function}")


def softmax(x: Floats) -> Floats:
    """Return the softmax along the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return cast("Floats", powers / powers.sum(-1, keepdims=True))


def heads_of(x: Floats, head_dim: int) -> Floats:
    """Return [T, h * d] as [T, h, d]."""
    return x.reshape(len(x), -1, head_dim)


def _flat(x: Floats) -> Floats:
    """Return [T, h, d] as [T, h * d]."""
    return x.reshape(len(x), -1)


def _weight(weights: Weights, index: int = 0) -> Floats:
    weight = weights[index]
    assert weight is not None
    return weight


def _normed(x: Floats, epsilon: float) -> Floats:
    """Return x over the root of its mean square, along the last axis."""
    return cast("Floats", x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon))


def _embedding(operation: Operation, x: Operands, w: Weights) -> Floats:
    return _weight(w)[np.maximum(cast("Integers", x[0]), 0)]


def _rms_norm(operation: Operation, x: Operands, w: Weights) -> Floats:
    normed = _normed(x[0], operation.number("epsilon"))
    return normed if w[0] is None else normed * w[0]


def _layer_norm(operation: Operation, x: Operands, w: Weights) -> Floats:
    centred = x[0] - x[0].mean(-1, keepdims=True)
    return _normed(centred, operation.number("epsilon")) * _weight(w) + _weight(w, 1)


def _head_norm(operation: Operation, x: Operands, w: Weights) -> Floats:
    heads = heads_of(x[0], operation.integer("head_dim"))
    return _flat(_normed(heads, operation.number("epsilon")) * _weight(w))


def _linear(operation: Operation, x: Operands, w: Weights) -> Floats:
    product = x[0] @ _weight(w).T
    return product if w[1] is None else product + w[1]


def _rope_angles(operation: Operation, x: Operands, w: Weights) -> Floats:
    """Cosines, then sines; the base grows with the position where the scaling is dynamic."""
    frequencies, original = _weight(w), operation.number("original_context")
    rows = []
    for position in np.maximum(cast("Integers", x[0]), 0):
        turned = frequencies
        if operation.number("dynamic") and position >= original:
            d, factor = 2 * len(frequencies), operation.number("factor")
            growth = factor * (position + 1) / original - (factor - 1)
            turned = (operation.number("base") * growth ** (d / (d - 2))) ** (-np.arange(0, d, 2) / d)
        rows.append(np.concatenate([np.cos(position * turned), np.sin(position * turned)]))
    return np.stack(rows) * operation.number("scale")


def _rope(operation: Operation, x: Operands, w: Weights) -> Floats:
    """Turn the pairs (i, i + r/2) of the first r features of each head."""
    heads, half = heads_of(x[0], operation.integer("head_dim")), x[1].shape[1] // 2
    cos, sin = x[1][:, None, :half], x[1][:, None, half:]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return _flat(np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1))


def _span_attention(operation: Operation, x: Operands, w: Weights) -> Floats:
    """Attention of each row to the rows of its span; padding has none."""
    q, k, v = (heads_of(value, operation.integer("head_dim")) for value in x[:3])
    starts, ends = (cast("Integers", value) for value in x[3:])
    result = np.zeros_like(q)
    for row in np.flatnonzero(ends > starts):
        seen = slice(starts[row], ends[row])
        scores = np.einsum("hd,thd->ht", q[row], k[seen]) * operation.number("scale")
        result[row] = np.einsum("ht,thd->hd", softmax(scores), v[seen])
    return _flat(result)


def _pool(operation: Operation, x: Operands, w: Weights) -> Floats:
    """One vector a sequence; empty sequences give zeros."""
    starts, ends = (cast("Integers", value) for value in x[1:])
    rows = np.zeros((len(starts), x[0].shape[1]), x[0].dtype)
    for index in np.flatnonzero(ends > starts):
        seen = x[0][starts[index] : ends[index]]
        rows[index] = seen[0] if operation.text("mode") == "cls" else seen.mean(0)
        if operation.number("normalize"):
            rows[index] /= max(float(np.linalg.norm(rows[index])), SHORTEST_VECTOR)
    return rows


LOGICAL_MEANINGS: dict[str, Meaning] = {
    "embedding": _embedding,
    "add": lambda operation, x, w: x[0] + x[1],
    "add_row": lambda operation, x, w: x[0] + _weight(w)[operation.integer("index")],
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "head_norm": _head_norm,
    "linear": _linear,
    "slice": lambda operation, x, w: x[0][:, operation.integer("start") : operation.integer("stop")],
    "concat": lambda operation, x, w: np.concatenate(x, axis=1),
    "rope_angles": _rope_angles,
    "rope": _rope,
    "span_attention": _span_attention,
    "activation": lambda operation, x, w: activated(operation.text("function"), x[0]),
    "gated": lambda operation, x, w: activated(operation.text("function"), x[0]) * x[1],
    "pool": _pool,
}
"""Those of the logical operators but attention, which is the cache's."""
