"""Gradients of a decoder's log-likelihood on a text, by the graph of logical operators walked backwards, in f32.

For a product y = x W' and the loss -log p(label), d is the loss's gradient for y: W's is d' x. Labels are the text's
own or drawn from what the model predicts; with these the mean outer product of gradients is the Hessian of the KL to
the model itself. What `interpret_text` computes forwards is kept for all tokens of the windows that are given, and so
they should be few. No torch: the operators are sixteen, and numpy multiplies as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.interpret import activated, softmax
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.scales import Floats
from pyc.passes.interpretation.interpret_text import ROWS_AT_A_TIME, RowsOf, TextInterpreter, Values, Windows, floats

Seen = tuple[Operation, Floats, Floats]
"""A product, its inputs x [tokens, K], and the gradients d [tokens, N] of its results."""


class TextGradients:
    """The products of a decoder on `windows`, with what they read and the gradients of what they give."""

    def __init__(self, module: Module, windows: Windows, rows_of: RowsOf) -> None:
        self._functions = [module.graph.function(name) for name in ("forward", "logits")]
        self._module, self._windows, self._rows_of = module, windows, rows_of
        self._text = TextInterpreter(module, windows)
        body, head = self._functions
        self._values = self._forward(body, self._text.inputs())
        self._head_values = self._forward(head, {head.parameters[0].name: self._values[body.result]})

    def predictions(self) -> Floats:
        """Return the probabilities of next tokens, f32 [tokens, vocabulary]."""
        return cast("Floats", softmax(cast("NDArray[np.float64]", self._head_values[self._functions[1].result])))

    def products(self, labels: NDArray[np.int64]) -> Iterator[Seen]:
        """Yield the products of the model, the last first, for the loss of these labels [tokens], summed over them."""
        body, head = self._functions
        d = self.predictions()
        d[np.arange(len(d)), labels] -= 1
        inner = yield from self._backward(head, self._head_values, d)
        yield from self._backward(body, self._values, inner[head.parameters[0].name])

    def _forward(self, function: Function, values: Values) -> Values:
        for operation in function.operations:
            operands = [values.get(name) for name in operation.operands]
            values[operation.result.name] = self._text.value(operation, operands, self._rows_of)
        return values

    def _backward(
        self, function: Function, values: Values, result: Floats
    ) -> Generator[Seen, None, dict[str, Floats]]:
        """Yield the products of a function, the last first, and return the gradients of its parameters."""
        gradients: dict[str, Floats] = {function.result: result}
        for operation in reversed(function.operations):
            d = gradients.pop(operation.result.name, None)
            if d is None:
                continue
            if operation.kind == "linear":
                yield operation, floats(values[operation.operands[0]]), d
            x = [values.get(name, _NOTHING) for name in operation.operands]
            for name, own in zip(operation.operands, self._pulled_back(operation, x, d), strict=False):
                gradients[name] = gradients[name] + own if name in gradients else own
        return gradients

    def _pulled_back(self, operation: Operation, x: list[NDArray[np.generic]], d: Floats) -> tuple[Floats, ...]:
        """Return the gradients of the first operands, those that are numbers of the model."""
        match operation.kind:
            case "embedding" | "rope_angles":
                return ()
            case "linear":
                return (self._through_matrix(operation.weights[0], d),)
            case "attention":
                return self._through_attention(operation, [floats(value) for value in x[:3]], d)
        given = [self._whole(name) for name in operation.weights]
        return tuple(np.asarray(each, np.float32) for each in _BACK[operation.kind](operation, x, given, d))

    def _whole(self, name: str) -> Floats | None:
        return self._rows_of(name, 0, self._module.weights[name].shape[0]) if name else None

    def _through_matrix(self, name: str, d: Floats) -> Floats:
        rows, columns = self._module.weights[name].shape
        found = np.zeros((len(d), columns), np.float32)
        for start in range(0, rows, ROWS_AT_A_TIME):
            stop = min(start + ROWS_AT_A_TIME, rows)
            found += d[:, start:stop] @ self._rows_of(name, start, stop)
        return found

    def _through_attention(self, operation: Operation, x: list[Floats], d: Floats) -> tuple[Floats, ...]:
        head_dim, window = operation.integer("head_dim"), operation.integer("window")
        groups, scale = operation.integer("heads") // operation.integer("kv_heads"), operation.number("scale")
        length = self._windows.ids.shape[1]
        prefix = None if self._text.prefix is None else self._text.prefix[operation.integer("layer")]
        before = 0 if prefix is None else prefix.shape[2]
        rows, columns = np.arange(before, before + length)[:, None], np.arange(before + length)[None]
        seen = (columns <= rows) & ((columns > rows - window) if window else True)
        found = tuple(np.empty_like(value) for value in x)
        for start in range(0, len(d), length):
            own = slice(start, start + length)
            q, k, v, dy = (value[own].reshape(length, -1, head_dim).swapaxes(0, 1) for value in (*x, d))
            if prefix is not None:
                k, v = np.concatenate([prefix[0], k], axis=1), np.concatenate([prefix[1], v], axis=1)
            k, v = np.repeat(k, groups, axis=0), np.repeat(v, groups, axis=0)
            scores = np.where(seen, (q @ k.swapaxes(1, 2)) * np.float32(scale), np.float32(-np.inf))
            p = softmax(cast("NDArray[np.float64]", scores))
            dp = dy @ v.swapaxes(1, 2)
            ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * np.float32(scale)
            dq, dk, dv = ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ dy
            by_group = (each.reshape(-1, groups, before + length, head_dim) for each in (dk, dv))
            dk, dv = (each.sum(1)[:, before:] for each in by_group)
            for place, each in zip(found, (dq, dk, dv), strict=True):
                place[own] = each.swapaxes(0, 1).reshape(length, -1)
        return found


Given = list[Floats | None]
_NOTHING = np.empty(0, np.float32)
"""In place of what only a cache reads."""

Back = Callable[[Operation, list[NDArray[np.generic]], Given, Floats], tuple[Floats, ...]]


def _some(weight: Floats | None) -> Floats:
    assert weight is not None
    return weight


def _normed_back(x: Floats, dy: Floats, epsilon: float) -> Floats:
    """x / sqrt(mean(x^2) + epsilon) along the last axis."""
    root = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon))
    return cast("Floats", root * (dy - x * (root * root) * (x * dy).mean(-1, keepdims=True)))


def _rms_norm_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    return (_normed_back(floats(x[0]), d if w[0] is None else d * w[0], o.number("epsilon")),)


def _layer_norm_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    given = floats(x[0])
    inner = _normed_back(given - given.mean(-1, keepdims=True), d * _some(w[0]), o.number("epsilon"))
    return (inner - inner.mean(-1, keepdims=True),)


def _head_norm_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    shape = (len(d), -1, o.integer("head_dim"))
    found = _normed_back(floats(x[0]).reshape(shape), d.reshape(shape) * _some(w[0]), o.number("epsilon"))
    return (found.reshape(d.shape),)


def _slice_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    found = np.zeros(x[0].shape, np.float32)
    found[:, o.integer("start") : o.integer("stop")] = d
    return (found,)


def _concat_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    width = x[0].shape[1]
    return d[:, :width], d[:, width:]


def _rope_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    """The turn the other way."""
    heads, angles = d.reshape(len(d), -1, o.integer("head_dim")), floats(x[1])
    half = angles.shape[1] // 2
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    turned = np.concatenate([first * cos + second * sin, second * cos - first * sin, rest], axis=-1)
    return (turned.reshape(d.shape),)


def _slope(function: str, x: Floats) -> Floats:
    """The derivative of an activation (`compiler.interpret.activated`)."""
    match function:
        case "silu":
            with np.errstate(over="ignore"):
                sigmoid = 1 / (1 + np.exp(-x))
            return cast("Floats", sigmoid * (1 + x * (1 - sigmoid)))
        case "relu":
            return (x > 0).astype(np.float32)
        case "gelu":
            below = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
            return cast("Floats", 0.5 * (1 + below) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))
        case _:
            root = math.sqrt(2 / math.pi)
            t = np.tanh(root * (x + 0.044715 * x**3))
            return cast("Floats", 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x))


def _activation_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    return (d * _slope(o.text("function"), floats(x[0])),)


def _gated_back(o: Operation, x: list[NDArray[np.generic]], w: Given, d: Floats) -> tuple[Floats, ...]:
    gate, up = floats(x[0]), floats(x[1])
    acted = cast("Floats", activated(o.text("function"), cast("NDArray[np.float64]", gate)))
    return d * up * _slope(o.text("function"), gate), d * acted


_BACK: dict[str, Back] = {
    "add": lambda o, x, w, d: (d, d),
    "add_row": lambda o, x, w, d: (d,),
    "rms_norm": _rms_norm_back,
    "layer_norm": _layer_norm_back,
    "head_norm": _head_norm_back,
    "slice": _slice_back,
    "concat": _concat_back,
    "rope": _rope_back,
    "activation": _activation_back,
    "gated": _gated_back,
}
"""What an operator's operands take of its result's gradient."""
