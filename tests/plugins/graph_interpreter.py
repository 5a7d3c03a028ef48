"""What a module means in float64: `compiler.interpret` over weights that are evaluated here, and naively.

It shares no code with compiler.evaluate, nor with what a backend compiles, so that either can be compared with it.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

from pyc.backends.cpu.meanings import cpu_meanings
from pyc.compiler import interpret
from pyc.compiler.ir import Module
from pyc.compiler.weights import (
    Added,
    Blended,
    Constant,
    Directed,
    Expression,
    Hadamard,
    Kronecker,
    Leading,
    LowRank,
    MatMul,
    Packed,
    Replaced,
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
        case Added(base, update, scale):
            return value_of(base) + scale * value_of(update)
        case Directed(base, magnitude):
            rows = value_of(base)
            return value_of(magnitude)[:, None] * rows / np.linalg.norm(rows, axis=1, keepdims=True)
        case Replaced(base, rows, indices):
            replaced = value_of(base)
            replaced[list(indices)] = value_of(rows)
            return replaced
        case MatMul(first, second):
            return value_of(first) @ value_of(second)
        case Hadamard(first, second):
            return value_of(first) * value_of(second)
        case Kronecker(first, second):
            return np.kron(value_of(first), value_of(second))
        case Leading(base, rows, columns):
            return value_of(base)[:rows, :columns]
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
    """Runs the functions of a module; `inputs` are the parameters by name, but for the block table.

    Every sequence has blocks of its own, in order.
    """

    def __init__(self, module: Module) -> None:
        cache = module.info.kv_cache
        self._block_tokens = cache.block_tokens if cache else 64
        blocks = -(-module.info.context // self._block_tokens)
        self._table = np.arange(module.info.max_sequences * blocks).reshape(module.info.max_sequences, blocks)
        weights = {name: value_of(item) for name, item in module.weights.items()}
        self._interpreter = interpret.Interpreter(
            module.graph, weights, block_tokens=self._block_tokens, meanings=cpu_meanings
        )

    def run(self, name: str, version: str = "", **inputs: np.ndarray) -> np.ndarray:
        """The result of one function, or of a version of it."""
        given = {key: np.asarray(value) for key, value in inputs.items()}
        return self._interpreter.run(name, given | {"block_table": self._table}, version)
