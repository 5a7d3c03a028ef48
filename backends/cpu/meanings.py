"""What the operators of the CPU mean, for `compiler.interpret`.

Quantized rows are the numbers that they stand for, [T, K]: x rounded to 8 significant bits (bf16), or in groups of
BLOCK features to s * q, q an integer in [-127, 127] and s of a group's largest magnitude m: m / 127 (float_scale), or
the least power of two that is not below it (power_of_two, interleaved). Rows that are split are the rows. Layouts mean
nothing, and weights are those handed in.

A fused operator means what the operators do one after another that it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from pyc.compiler.interpret import (
    LOGICAL_MEANINGS,
    Floats,
    Integers,
    Meaning,
    Operands,
    PagedCache,
    Weights,
    activated,
)
from pyc.compiler.ir import Operation
from pyc.compiler.mxfp8 import float8_rows_rounded, mxfp8_rounded
from pyc.compiler.quantization import BLOCK


def cpu_meanings(cache: PagedCache) -> Mapping[str, Meaning]:
    """Return the meaning of every operator of the CPU, over `cache`."""

    def append(operation: Operation, x: Operands, w: Weights) -> Floats:
        """Norm and turn queries and keys, keep keys and values; the queries."""
        kv_width = operation.integer("kv_heads") * operation.integer("head_dim")
        q, k, v = np.split(x[0], [x[0].shape[1] - 2 * kv_width, x[0].shape[1] - kv_width], axis=1)
        q, k = (_prepared(operation, part, x[1], gain) for part, gain in ((q, w[0]), (k, w[1])))
        cache.append(operation, k, v, x[2:])
        return q

    def linear_append(operation: Operation, x: Operands, w: Weights) -> Floats:
        return append(operation, (_logical("linear", operation, x[:1], w[:2]), *x[1:]), w[2:])

    def attend(operation: Operation, x: Operands, w: Weights) -> Floats:
        return cache.attend(operation, x[0], x[1:])

    return {
        "quantize_rows": lambda operation, x, w: fake_quantized(operation.text("row_format"), x[0]),
        "round_fp8": lambda operation, x, w: cast("Floats", float8_rows_rounded(x[0])),
        "round_mxfp8": lambda operation, x, w: cast("Floats", mxfp8_rounded(x[0])),
        "split_rows": lambda operation, x, w: x[0],
        "linear_split": LOGICAL_MEANINGS["linear"],
        "linear_quantized": LOGICAL_MEANINGS["linear"],
        "select_row": _select_row,
        "qkv_append": append,
        "cached_attention": attend,
        "qkv_span_attention": _qkv_span_attention,
        "gated_pair": _gated_pair,
        "rms_norm_quantize": _then_quantized(LOGICAL_MEANINGS["rms_norm"]),
        "layer_norm_quantize": _then_quantized(LOGICAL_MEANINGS["layer_norm"]),
        "activation_quantize": _then_quantized(LOGICAL_MEANINGS["activation"]),
        "gated_quantize": _then_quantized(LOGICAL_MEANINGS["gated"]),
        "gated_pair_quantize": _then_quantized(_gated_pair),
        "add_rms_norm_quantize": _of_sum("rms_norm"),
        "add_layer_norm_quantize": _of_sum("layer_norm"),
        "linear_append": linear_append,
        "linear_quantized_append": linear_append,
        "linear_gated_quantize": _linear_gated_quantize,
        "cached_attention_quantize": _then_quantized(attend),
    }


def fake_quantized(row_format: str, x: Floats) -> Floats:
    """Return the numbers that quantized rows [T, K] stand for."""
    if row_format == "bf16":
        fraction, exponent = np.frexp(x)
        return cast("Floats", np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8))
    padding = -x.shape[1] % BLOCK
    groups = np.pad(x, ((0, 0), (0, padding))).reshape(len(x), -1, BLOCK)
    scale = np.abs(groups).max(-1, keepdims=True) / 127
    if row_format != "float_scale":
        fraction, exponent = np.frexp(scale)
        scale = np.ldexp(1.0, exponent - (fraction == 0.5))
    rounded = np.rint(groups / np.where(scale > 0, scale, 1)) * scale
    return cast("Floats", rounded.reshape(len(x), -1)[:, : x.shape[1]])


def _logical(kind: str, operation: Operation, x: Operands, w: Weights) -> Floats:
    """Return what a logical operator of one result makes, with the attributes of another's operation."""
    return cast("Floats", LOGICAL_MEANINGS[kind](operation, x, w))


def _then_quantized(meaning: Meaning) -> Meaning:
    def quantized(operation: Operation, x: Operands, w: Weights) -> Floats:
        return fake_quantized(operation.text("row_format"), cast("Floats", meaning(operation, x, w)))

    return quantized


def _of_sum(norm: str) -> Meaning:
    def normed(operation: Operation, x: Operands, w: Weights) -> tuple[Floats, Floats]:
        total = x[0] + x[1]
        return fake_quantized(operation.text("row_format"), _logical(norm, operation, (total,), w)), total

    return normed


def _linear_gated_quantize(operation: Operation, x: Operands, w: Weights) -> Floats:
    gate_up = _logical("linear", operation, x, (*w, None))
    return fake_quantized(operation.text("makes"), _gated_pair(operation, (gate_up,), ()))


def _gated_pair(operation: Operation, x: Operands, w: Weights) -> Floats:
    gate, up = np.split(x[0], 2, axis=1)
    return activated(operation.text("function"), gate) * up


def _select_row(operation: Operation, x: Operands, w: Weights) -> Floats:
    """The row of that number, or the nearest there is."""
    row = int(np.clip(cast("Integers", x[1])[0], 0, len(x[0]) - 1))
    return x[0][row : row + 1]


def _prepared(operation: Operation, heads: Floats, angles: Floats, gain: Floats | None) -> Floats:
    """Return heads that are normed, where there is a gain, and turned."""
    normed = heads if gain is None else _logical("head_norm", operation, (heads,), (gain,))
    return _logical("rope", operation, (normed, angles), ())


def _qkv_span_attention(operation: Operation, x: Operands, w: Weights) -> Floats:
    return _logical("span_attention", operation, (*np.split(x[0], 3, axis=1), *x[1:]), w)
