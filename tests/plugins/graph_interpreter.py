"""A naive float64 interpreter of the IR: what a graph means, with no thought of speed.

It shares no code with compiler.evaluate or a backend, so that either can be compared with it. The key-value
cache is a table (layer, sequence, position) -> (k, v), kept from call to call.
"""

import math
from pathlib import Path

import ml_dtypes
import numpy as np

from pyc.compiler.ir import Module, Operation
from pyc.compiler.weights import (
    Blended,
    Constant,
    Expression,
    LowRank,
    Packed,
    ScaledColumns,
    ScaledRows,
    Source,
    Stacked,
    Stored,
    Transposed,
)

NUMPY_DTYPES = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": ml_dtypes.bfloat16}


def value_of(expression: Expression) -> np.ndarray:
    """The value of a weight expression in float64; storage schemes and layouts are taken as lossless."""
    match expression:
        case Source():
            data = Path(expression.path).read_bytes()
            data = data[expression.offset : expression.offset + expression.size_bytes]
            return np.frombuffer(data, NUMPY_DTYPES[expression.dtype]).reshape(expression.shape).astype(float)
        case Constant(values):
            return np.array(values)
        case Transposed(base):
            return value_of(base).T
        case LowRank(base, a, b, scale):
            return value_of(base) + scale * (value_of(b) @ value_of(a))
        case ScaledRows(base, vector):
            return (value_of(base).T * value_of(vector)).T
        case ScaledColumns(base, vector):
            return value_of(base) * value_of(vector)
        case Blended(base, weight):
            return 1 + weight * (value_of(base) - 1)
        case Stacked(parts):
            return np.concatenate([value_of(part) for part in parts])
        case Stored(base) | Packed(base):
            return value_of(base)


class Interpreter:
    """Runs the functions of a module; `inputs` are the parameters by name, rows as in the runtime's step."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.weights = {name: value_of(item) for name, item in module.weights.items()}
        self.cache: dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]] = {}

    def run(self, name: str, **inputs: np.ndarray) -> np.ndarray:
        """The result of one function."""
        function = self.module.graph.function(name)
        values = {parameter.name: np.asarray(inputs[parameter.name]) for parameter in function.parameters}
        for operation in function.operations:
            operands = [values[operand] for operand in operation.operands]
            weights = [self.weights[weight] if weight else None for weight in operation.weights]
            values[operation.result.name] = self.apply(operation, operands, weights)
        return values[function.result]

    def apply(self, operation: Operation, x: list, w: list) -> np.ndarray:
        """The result of one operation on operands `x` and weights `w`."""
        at = dict(operation.attributes)
        match operation.kind:
            case "embedding":
                return w[0][np.maximum(x[0], 0)]
            case "add":
                return x[0] + x[1]
            case "add_row":
                return x[0] + w[0][at["index"]]
            case "rms_norm":
                return normed(x[0], at["epsilon"]) * (1.0 if w[0] is None else w[0])
            case "layer_norm":
                centred = x[0] - x[0].mean(-1, keepdims=True)
                return normed(centred, at["epsilon"]) * w[0] + w[1]
            case "head_norm":
                return flat(normed(heads_of(x[0], at["head_dim"]), at["epsilon"]) * w[0])
            case "linear":
                return x[0] @ w[0].T + (0.0 if w[1] is None else w[1])
            case "slice":
                return x[0][:, at["start"] : at["stop"]]
            case "select_row":
                return x[0][x[1]]
            case "concat":
                return np.concatenate(x, axis=1)
            case "rope_angles":
                return angles(x[0], w[0], at)
            case "rope":
                return flat(rotated(heads_of(x[0], at["head_dim"]), x[1]))
            case "attention":
                return self.attention(x, at)
            case "span_attention":
                return span_attention(x, at)
            case "activation":
                return activated(x[0], at["function"])
            case "gated":
                return activated(x[0], at["function"]) * x[1]
            case "gated_pair":
                gate, up = np.split(x[0], 2, axis=1)
                return activated(gate, at["function"]) * up
            case "pool":
                return pooled(x, at)
        raise AssertionError(f"no meaning for {operation.kind}")

    def attention(self, x: list, at: dict) -> np.ndarray:
        """Append the rows to the cache of the layer, then attend to the window before each row."""
        q, k, v = (heads_of(value, at["head_dim"]) for value in x[:3])
        positions, sequences = x[3], x[4]
        for row, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
            if position >= 0:
                self.cache[at["layer"], sequence, position] = (k[row], v[row])
        result = np.zeros_like(q)
        group = at["heads"] // at["kv_heads"]
        for row, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
            if position < 0:
                continue
            first = max(0, position - at["window"] + 1) if at["window"] else 0
            seen = [self.cache[at["layer"], sequence, past] for past in range(first, position + 1)]
            for head in range(at["heads"]):
                keys, values = (np.stack([pair[i][head // group] for pair in seen]) for i in (0, 1))
                result[row, head] = softmax(keys @ q[row, head] * at["scale"]) @ values
        return flat(result)


def normed(x: np.ndarray, epsilon: float) -> np.ndarray:
    """x over the root of its mean square."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def heads_of(x: np.ndarray, head_dim: int) -> np.ndarray:
    """[T, h * d] as [T, h, d]."""
    return x.reshape(len(x), -1, head_dim)


def flat(x: np.ndarray) -> np.ndarray:
    """[T, h, d] as [T, h * d]."""
    return x.reshape(len(x), -1)


def angles(positions: np.ndarray, frequencies: np.ndarray, at: dict) -> np.ndarray:
    """Cosines, then sines, of every position: [T, 2 * frequencies]."""
    rows = []
    for position in np.maximum(positions, 0):
        turned = frequencies
        if at["dynamic"] and position >= at["original_context"]:
            d = 2 * len(frequencies)
            growth = at["factor"] * (position + 1) / at["original_context"] - (at["factor"] - 1)
            turned = (at["base"] * growth ** (d / (d - 2))) ** (-np.arange(0, d, 2) / d)
        rows.append(np.concatenate([np.cos(position * turned), np.sin(position * turned)]))
    return np.stack(rows) * at["scale"]


def rotated(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Turn the pairs (i, i + r/2) of the first r features of each head."""
    half = angle.shape[1] // 2
    cos, sin = angle[:, None, :half], angle[:, None, half:]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def span_attention(x: list, at: dict) -> np.ndarray:
    """Attention of each row to the rows of its span."""
    q, k, v = (heads_of(value, at["head_dim"]) for value in x[:3])
    result = np.zeros_like(q)
    for row, (start, end) in enumerate(zip(x[3], x[4], strict=True)):
        for head in range(at["heads"]) if end > start else ():
            weights = softmax(k[start:end, head] @ q[row, head] * at["scale"])
            result[row, head] = weights @ v[start:end, head]
    return flat(result)


def activated(x: np.ndarray, function: str) -> np.ndarray:
    """The activation functions of the IR."""
    match function:
        case "silu":
            return x / (1 + np.exp(-x))
        case "gelu":
            return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        case "gelu_tanh":
            return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case "relu":
            return np.maximum(x, 0)
    raise AssertionError(function)


def pooled(x: list, at: dict) -> np.ndarray:
    """One vector a sequence; empty sequences give zeros."""
    rows = np.zeros((len(x[1]), x[0].shape[1]))
    for index, (start, end) in enumerate(zip(x[1], x[2], strict=True)):
        if end > start:
            rows[index] = x[0][start] if at["mode"] == "cls" else x[0][start:end].mean(0)
            if at["normalize"]:
                rows[index] /= max(np.linalg.norm(rows[index]), 1e-12)
    return rows
