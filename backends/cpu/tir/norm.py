"""Norm kernels in TIR: f32 rows [tokens, features], sums in 4 chains of 16 lanes, one row a thread at a time.

In every kernel of this package `one_row` says that there is a single row, which is then computed on the
calling thread: a parallel region costs 2 us, more than a row.
"""

from __future__ import annotations

from typing import TypeVar

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

LANES = 16
"""Partial sums of a chain: one AVX-512 register of f32."""

CHAINS = 4
"""Sums that a reduction has side by side: an addition takes 3 to 4 cycles, and the next of its chain waits for it."""

SUMS = CHAINS * LANES

TOKENS = TypeVar("TOKENS")
"""Rows of the batch: kernels are compiled once for all buckets, with this as a variable of their shapes."""


@T.inline
def sum_of_squares(total, lanes, x, t, features):
    """Set total[0] to the sum of (x[t, i] - total[1])^2, in 4 chains of 16 partial sums and a tail."""
    for j in T.vectorized(SUMS):
        lanes[j] = T.float32(0)
    for i in range(features // SUMS):
        for c in T.unroll(CHAINS):
            for j in T.vectorized(LANES):
                offset = T.meta_var(i * SUMS + c * LANES + j)
                lanes[c * LANES + j] = lanes[c * LANES + j] + (x[t, offset] - total[1]) * (x[t, offset] - total[1])
    for i in range(features % SUMS // LANES):
        for j in T.vectorized(LANES):
            offset = T.meta_var(features - features % SUMS + i * LANES + j)
            lanes[j] = lanes[j] + (x[t, offset] - total[1]) * (x[t, offset] - total[1])
    for c in T.unroll(CHAINS - 1):
        for j in T.vectorized(LANES):
            lanes[j] = lanes[j] + lanes[(c + 1) * LANES + j]
    total[0] = T.float32(0)
    for j in range(LANES):
        total[0] = total[0] + lanes[j]
    for i in range(features % LANES):
        offset = T.meta_var(features - features % LANES)
        total[0] = total[0] + (x[t, offset + i] - total[1]) * (x[t, offset + i] - total[1])


def rms_norm(one_row: bool, features: int, epsilon: float) -> PrimFunc:
    """y = x / sqrt(mean(x^2) + epsilon); arguments x, y."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((TOKENS, features), "float32"), y: T.Buffer((TOKENS, features), "float32")):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            with T.sblock("row"):
                T.reads()
                T.writes()
                lanes = T.sblock_alloc_buffer((SUMS,), "float32")
                total = T.sblock_alloc_buffer((2,), "float32")
                total[1] = T.float32(0)
                sum_of_squares(total, lanes, x, t, features)
                total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(features) + T.float32(epsilon))
                for i in range(features):
                    y[t, i] = x[t, i] * total[0]

    return kernel


def rms_norm_gain(one_row: bool, features: int, epsilon: float) -> PrimFunc:
    """y = x / sqrt(mean(x^2) + epsilon) * gain; arguments x, gain, y."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((TOKENS, features), "float32"),
        gain: T.Buffer((features,), "float32"),
        y: T.Buffer((TOKENS, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            with T.sblock("row"):
                T.reads()
                T.writes()
                lanes = T.sblock_alloc_buffer((SUMS,), "float32")
                total = T.sblock_alloc_buffer((2,), "float32")
                total[1] = T.float32(0)
                sum_of_squares(total, lanes, x, t, features)
                total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(features) + T.float32(epsilon))
                for i in range(features):
                    y[t, i] = x[t, i] * total[0] * gain[i]

    return kernel


def layer_norm(one_row: bool, features: int, epsilon: float) -> PrimFunc:
    """y = (x - mean) / sqrt(variance + epsilon) * gain + bias, in two passes; arguments x, gain, bias, y."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((TOKENS, features), "float32"),
        gain: T.Buffer((features,), "float32"),
        bias: T.Buffer((features,), "float32"),
        y: T.Buffer((TOKENS, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            with T.sblock("row"):
                T.reads()
                T.writes()
                lanes = T.sblock_alloc_buffer((SUMS,), "float32")
                total = T.sblock_alloc_buffer((2,), "float32")
                total[1] = T.float32(0)
                for i in range(features):
                    total[1] = total[1] + x[t, i]
                total[1] = total[1] / T.float32(features)
                sum_of_squares(total, lanes, x, t, features)
                total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(features) + T.float32(epsilon))
                for i in range(features):
                    y[t, i] = (x[t, i] - total[1]) * total[0] * gain[i] + bias[i]

    return kernel
