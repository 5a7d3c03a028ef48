"""The logical operators in torch: what `compiler.interpret` says in numpy, over texts that are rows of a batch.

Values are f32 [batch, tokens, features]; `Step` has what operators need to know of all of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from pyc.backends.torch_tensorrt.weights import Weight
from pyc.compiler.interpret import SHORTEST_VECTOR
from pyc.compiler.ir import Operation

Operands = Sequence[Tensor]
Weights = Sequence[Weight | None]


@dataclass(slots=True)
class Step:
    """What is computed together: `tokens` new positions of each text, behind those of the cache.

    `mask` [batch, positions] is not zero where there is a token. `past` has the keys and values of each layer, [batch,
    kv_heads, cached, head_dim], in turn; `present` takes them with the step's own behind.
    """

    mask: Tensor
    tokens: int
    past: Sequence[Tensor] = ()
    present: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _seen: dict[int | None, Tensor] = field(default_factory=dict)

    def seen(self, window: int | None) -> Tensor:
        """Return which positions a row sees, bool [batch, 1, tokens, positions].

        `window` None: all tokens of its text; 0: those up to itself; else at most so many of these. A row sees itself
        in any case: attention of padding means nothing, but has to be finite.
        """
        if window not in self._seen:
            total = self.mask.shape[1]
            columns = torch.arange(total, device=self.mask.device)
            rows = (torch.arange(self.tokens, device=self.mask.device) + (total - self.tokens)).unsqueeze(1)
            seen = (self.mask != 0).unsqueeze(1)
            if window is not None:
                seen = seen & (columns <= rows)
            if window:
                seen = seen & (columns > rows - window)
            self._seen[window] = (seen | (columns == rows)).unsqueeze(1)
        return self._seen[window]


Meaning = Callable[[Operation, Operands, Weights, Step], Tensor]


def activated(function: str, x: Tensor) -> Tensor:
    """Return an activation of `compiler.operators.ACTIVATIONS`."""
    match function:
        case "silu":
            return functional.silu(x)
        case "relu":
            return functional.relu(x)
        case "relu2":
            return functional.relu(x).square()
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case _:
            raise AssertionError(f"no activation is called {function}")


def _values(weights: Weights, index: int = 0) -> Tensor:
    weight = weights[index]
    assert weight is not None
    return weight.values()


def _normed(x: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def _embedding(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    assert w[0] is not None
    return w[0].rows(x[0])


def _rms_norm(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    normed = _normed(x[0], operation.number("epsilon"))
    return normed if w[0] is None else normed * w[0].values()


def _layer_norm(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    gain = _values(w)
    return functional.layer_norm(x[0], gain.shape, gain, _values(w, 1), operation.number("epsilon"))


def _head_norm(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    heads = torch.unflatten(x[0], -1, (-1, operation.integer("head_dim")))
    return (_normed(heads, operation.number("epsilon")) * _values(w)).flatten(-2)


def _linear(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    return functional.linear(x[0], _values(w), None if w[1] is None else w[1].values())


def _slice(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    return x[0][..., operation.integer("start") : operation.integer("stop")]


def _rope_angles(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    """Cosines, then sines; the base grows with the position where the scaling is dynamic."""
    positions, frequencies = x[0].float().unsqueeze(-1), _values(w)
    if operation.number("dynamic"):
        original, factor, d = operation.number("original_context"), operation.number("factor"), 2 * len(frequencies)
        growth = (factor * (positions + 1) / original - (factor - 1)).clamp(min=1)
        exponents = -torch.arange(0, d, 2, device=positions.device).float() / d
        grown = (operation.number("base") * growth ** (d / (d - 2))) ** exponents
        frequencies = torch.where(positions >= original, grown, frequencies)
    turned = positions * frequencies
    return torch.cat((torch.cos(turned), torch.sin(turned)), -1) * operation.number("scale")


def _rope(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    """Turn the pairs (i, i + r/2) of the first r features of each head."""
    heads, half = torch.unflatten(x[0], -1, (-1, operation.integer("head_dim"))), x[1].shape[-1] // 2
    cos, sin = x[1][..., :half].unsqueeze(-2), x[1][..., half:].unsqueeze(-2)
    first, second = heads[..., :half], heads[..., half : 2 * half]
    turned = [first * cos - second * sin, second * cos + first * sin]
    if 2 * half < heads.shape[-1]:
        turned.append(heads[..., 2 * half :])
    return torch.cat(turned, -1).flatten(-2)


def _by_head(x: Tensor, head_dim: int) -> Tensor:
    """Return [batch, tokens, h * d] as [batch, h, tokens, d]."""
    return torch.unflatten(x, -1, (-1, head_dim)).transpose(1, 2)


def _attended(operation: Operation, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scale, is_grouped = operation.number("scale"), q.shape[1] != k.shape[1]
    found = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=is_grouped)
    return found.transpose(1, 2).flatten(-2)


def _attention(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    layer, head_dim = operation.integer("layer"), operation.integer("head_dim")
    q, k, v = (_by_head(value, head_dim) for value in x[:3])
    keys, values = (torch.cat((step.past[2 * layer + part], new), 2) for part, new in enumerate((k, v)))
    step.present[layer] = keys, values
    return _attended(operation, q, keys, values, step.seen(operation.integer("window")))


def _span_attention(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    """Attention of each token to those of its text."""
    q, k, v = (_by_head(value, operation.integer("head_dim")) for value in x[:3])
    return _attended(operation, q, k, v, step.seen(None))


def _pool(operation: Operation, x: Operands, w: Weights, step: Step) -> Tensor:
    """One vector a text; those without a token give zeros."""
    tokens = (step.mask != 0).float().unsqueeze(-1)
    if operation.text("mode") == "cls":
        vectors = (x[0] * tokens * (tokens.cumsum(1) == 1)).sum(1)  # padding may be in front of the first token
    else:
        vectors = (x[0] * tokens).sum(1) / tokens.sum(1).clamp(min=1)
    if operation.number("normalize"):
        lengths = torch.sqrt(vectors.square().sum(-1, keepdim=True))
        vectors = vectors / lengths.clamp(min=SHORTEST_VECTOR)
    return vectors


MEANINGS: Mapping[str, Meaning] = {
    "embedding": _embedding,
    "add": lambda operation, x, w, step: x[0] + x[1],
    "add_row": lambda operation, x, w, step: x[0] + _values(w)[operation.integer("index")],
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "head_norm": _head_norm,
    "linear": _linear,
    "slice": _slice,
    "concat": lambda operation, x, w, step: torch.cat((x[0], x[1]), -1),
    "rope_angles": _rope_angles,
    "rope": _rope,
    "attention": _attention,
    "span_attention": _span_attention,
    "activation": lambda operation, x, w, step: activated(operation.text("function"), x[0]),
    "gated": lambda operation, x, w, step: activated(operation.text("function"), x[0]) * x[1],
    "pool": _pool,
}
"""Every logical operator."""
