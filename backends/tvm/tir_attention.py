"""Attention kernels in TIR: rotary angles, the wrappers of what reads and writes the paged cache, attention over spans.

What touches the cache is C (templates/include/pyc_cache.h has its layout); the kernels here hand out its work. Each row
is computed by one thread in one order, whatever the batch around it.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from pyc.backends.tvm import tir_math
from pyc.backends.tvm.tir_norm import LANES, TOKENS

UNIT_TOKENS = 16
"""PYC_UNIT_TOKENS of templates/include/pyc_qkv_append.h."""
PARTS = 32
"""Shares of attention that threads take."""
MASKED = -1e30

CacheShape = tuple[int, int, int]
"""Of one block of a layer's cache: 2, key/value heads, bytes of a head."""


def rope_angles(
    one_row: bool, half: int, scale: float, base: float, factor: float, original: int, dynamic: bool
) -> PrimFunc:
    """Cosines and sines of position * inverse frequency, times `scale`, [tokens, 2 * half].

    `dynamic`: from position `original` on, the base grows as in transformers' dynamic NTK scaling, as if every
    token had been the last one of its sequence when it was rotated:
    base' = base * (factor * (p + 1) / original - (factor - 1)) ^ (d / (d - 2)).
    """
    exponent = 2 * half / (2 * half - 2) if half > 1 else 1.0
    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        positions: T.Buffer((TOKENS,), "int32"),
        inverse: T.Buffer((half,), "float32"),
        angles: T.Buffer((TOKENS, 2 * half), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(half):
                with T.sblock("pair"):
                    T.reads()
                    T.writes()
                    angle = T.sblock_alloc_buffer((2,), "float32")
                    angle[1] = T.cast(T.max(positions[t], 0), "float32")
                    angle[0] = angle[1] * inverse[i]
                    if dynamic:  # noqa: SIM102 - decided while parsing; the inner one is part of the kernel
                        if positions[t] >= original:
                            angle[0] = angle[1] * T.pow(
                                T.float32(base)
                                * T.pow(
                                    T.float32(factor) * (angle[1] + T.float32(1)) / T.float32(original)
                                    - T.float32(factor - 1),
                                    T.float32(exponent),
                                ),
                                T.cast(i, "float32") * T.float32(-1.0 / half),
                            )
                    angles[t, i] = T.cos(angle[0]) * T.float32(scale)
                    angles[t, half + i] = T.sin(angle[0]) * T.float32(scale)

    return kernel


def qkv_append(
    symbol: str, one_row: bool, width: int, half: int, table: tuple[int, int], cache: CacheShape, queries_width: int
) -> PrimFunc:
    """Rotated queries, and keys and values into the cache, by the C kernel `symbol` (pyc_qkv_append.h).

    Arguments: qkv [tokens, width], angles [tokens, 2 * half], positions, sequences i32 [tokens], block_table i32
    [max_sequences, blocks of a sequence], cache, queries [tokens, queries_width]. Rows with a negative position store
    nothing. `one_row`: the calling thread does it alone.
    """
    over_units = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        qkv: T.Buffer((TOKENS, width), "float32"),
        angles: T.Buffer((TOKENS, 2 * half), "float32"),
        positions: T.Buffer((TOKENS,), "int32"),
        sequences: T.Buffer((TOKENS,), "int32"),
        block_table: T.Buffer(table, "int32"),
        cache_handle: T.handle,
        queries: T.Buffer((TOKENS, queries_width), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        blocks = T.int64()
        buffer = T.match_buffer(cache_handle, (blocks, *cache), "uint8")
        for unit in over_units((TOKENS + UNIT_TOKENS - 1) // UNIT_TOKENS):
            with T.sblock("unit"):
                T.reads()
                T.writes()
                T.evaluate(
                    T.call_extern(
                        "int32",
                        symbol,
                        qkv.data,
                        angles.data,
                        positions.data,
                        sequences.data,
                        block_table.data,
                        buffer.data,
                        queries.data,
                        T.cast(TOKENS, "int32"),
                        T.cast(unit, "int32"),
                        T.cast(unit + 1, "int32"),
                    )
                )

    return kernel


def qkv_append_gain(
    symbol: str,
    one_row: bool,
    width: int,
    half: int,
    table: tuple[int, int],
    cache: CacheShape,
    queries_width: int,
    head_dim: int,
) -> PrimFunc:
    """The same with each query and key head normalised first; q_gain, k_gain f32 [head_dim] before the cache."""
    over_units = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        qkv: T.Buffer((TOKENS, width), "float32"),
        angles: T.Buffer((TOKENS, 2 * half), "float32"),
        positions: T.Buffer((TOKENS,), "int32"),
        sequences: T.Buffer((TOKENS,), "int32"),
        block_table: T.Buffer(table, "int32"),
        q_gain: T.Buffer((head_dim,), "float32"),
        k_gain: T.Buffer((head_dim,), "float32"),
        cache_handle: T.handle,
        queries: T.Buffer((TOKENS, queries_width), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        blocks = T.int64()
        buffer = T.match_buffer(cache_handle, (blocks, *cache), "uint8")
        for unit in over_units((TOKENS + UNIT_TOKENS - 1) // UNIT_TOKENS):
            with T.sblock("unit"):
                T.reads()
                T.writes()
                T.evaluate(
                    T.call_extern(
                        "int32",
                        symbol,
                        qkv.data,
                        angles.data,
                        positions.data,
                        sequences.data,
                        block_table.data,
                        q_gain.data,
                        k_gain.data,
                        buffer.data,
                        queries.data,
                        T.cast(TOKENS, "int32"),
                        T.cast(unit, "int32"),
                        T.cast(unit + 1, "int32"),
                    )
                )

    return kernel


def cached_attention(symbol: str, width: int, table: tuple[int, int], cache: CacheShape) -> PrimFunc:
    """Attention of each row over its sequence's cache, by the C kernel `symbol` (pyc_attention.h).

    Arguments: queries [tokens, width], positions, sequences, block_table, cache, y like queries. Rows with a negative
    position give zeros. The kernel itself divides its work into PARTS of about the same cost.
    """

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        queries: T.Buffer((TOKENS, width), "float32"),
        positions: T.Buffer((TOKENS,), "int32"),
        sequences: T.Buffer((TOKENS,), "int32"),
        block_table: T.Buffer(table, "int32"),
        cache_handle: T.handle,
        y: T.Buffer((TOKENS, width), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        blocks = T.int64()
        buffer = T.match_buffer(cache_handle, (blocks, *cache), "uint8")
        for part in T.parallel(PARTS):
            with T.sblock("part"):
                T.reads()
                T.writes()
                T.evaluate(
                    T.call_extern(
                        "int32",
                        symbol,
                        queries.data,
                        positions.data,
                        sequences.data,
                        block_table.data,
                        buffer.data,
                        y.data,
                        T.cast(TOKENS, "int32"),
                        part,
                        PARTS,
                    )
                )

    return kernel


def transpose_keys(tokens: int, heads: int, head_dim: int) -> PrimFunc:
    """The keys of qkv [tokens, 3 * heads * head_dim] as [heads * head_dim, tokens rounded up to 16], zero padded."""
    features = heads * head_dim
    padded = (tokens + LANES - 1) // LANES * LANES

    @T.prim_func(private=True, s_tir=True)
    def kernel(qkv: T.Buffer((tokens, 3 * features), "float32"), keys: T.Buffer((features, padded), "float32")):
        T.func_attr({"tir.noalias": True})
        for i in T.parallel(features):
            for t in range(padded):
                keys[i, t] = T.if_then_else(t < tokens, qkv[T.min(t, tokens - 1), features + i], T.float32(0))

    return kernel


def span_attention(tokens: int, heads: int, head_dim: int, scale: float) -> PrimFunc:
    """softmax(scale * q . k) v over rows [span_start[t], span_end[t]) of the batch.

    Arguments: qkv [tokens, 3 * heads * head_dim], keys from `transpose_keys`, span_start, span_end i32 [tokens],
    y [tokens, heads * head_dim]. Rows with an empty span give zeros.
    """
    features = heads * head_dim
    padded = (tokens + LANES - 1) // LANES * LANES

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        qkv: T.Buffer((tokens, 3 * features), "float32"),
        keys: T.Buffer((features, padded), "float32"),
        span_start: T.Buffer((tokens,), "int32"),
        span_end: T.Buffer((tokens,), "int32"),
        y: T.Buffer((tokens, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for th in T.parallel(tokens * heads):
            with T.sblock("row"):
                T.reads()
                T.writes()
                score = T.sblock_alloc_buffer((padded,), "float32")
                value = T.sblock_alloc_buffer((head_dim,), "float32")
                state = T.sblock_alloc_buffer((2,), "float32")
                bounds = T.sblock_alloc_buffer((2,), "int32")
                t = T.meta_var(th // heads)
                h = T.meta_var(th % heads)
                bounds[0] = span_start[t] // LANES
                bounds[1] = T.if_then_else(
                    span_end[t] > span_start[t], (span_end[t] + LANES - 1) // LANES - bounds[0], 0
                )
                state[0] = T.float32(MASKED)
                state[1] = T.float32(0)
                for i in range(head_dim):
                    value[i] = T.float32(0)
                for step in range(bounds[1]):
                    for j in T.vectorized(LANES):
                        score[(bounds[0] + step) * LANES + j] = T.float32(0)
                    for i in range(head_dim):
                        for j in T.vectorized(LANES):
                            score[(bounds[0] + step) * LANES + j] = (
                                score[(bounds[0] + step) * LANES + j]
                                + qkv[t, h * head_dim + i] * keys[h * head_dim + i, (bounds[0] + step) * LANES + j]
                            )
                for r in range(span_end[t] - span_start[t]):
                    state[0] = T.max(state[0], score[span_start[t] + r])
                for r in range(span_end[t] - span_start[t]):
                    score[span_start[t] + r] = tir_math.exp((score[span_start[t] + r] - state[0]) * T.float32(scale))
                    state[1] = state[1] + score[span_start[t] + r]
                for r in range(span_end[t] - span_start[t]):
                    for i in range(head_dim):
                        value[i] = (
                            value[i]
                            + score[span_start[t] + r] * qkv[span_start[t] + r, 2 * features + h * head_dim + i]
                        )
                state[1] = T.max(state[1], T.float32(1e-30))
                for i in range(head_dim):
                    y[t, h * head_dim + i] = value[i] / state[1]

    return kernel
