"""Attention kernels in TIR: rotary positions, the paged key/value cache, attention over it and over spans.

Cache of one layer: [blocks, 2, kv_heads, head_dim * 16], blocks of 16 positions. Keys lie as [head_dim][16], so
that one vector lane is one position and a score needs no horizontal sum; values lie as [16][head_dim].

Attention over the cache is a C kernel; what is here prepares its operands and deals out its work. Each row is
computed by one thread in one order, whatever the batch around it.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from pyc.backends.tvm import tir_math
from pyc.backends.tvm.tir_norm import LANES, TOKENS

BLOCK = 16
"""Positions of a cache block; equal to the lanes of a vector."""
UNIT_ROWS = 32
"""PYC_UNIT_ROWS of templates/include/pyc_attention.h."""
MASKED = -1e30


def rope_angles(half: int, scale: float, base: float, factor: float, original: int, dynamic: bool) -> PrimFunc:
    """Cosines and sines of position * inverse frequency, times `scale`, [tokens, 2 * half].

    `dynamic`: from position `original` on, the base grows as in transformers' dynamic NTK scaling, as if every
    token had been the last one of its sequence when it was rotated:
    base' = base * (factor * (p + 1) / original - (factor - 1)) ^ (d / (d - 2)).
    """
    exponent = 2 * half / (2 * half - 2) if half > 1 else 1.0

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        positions: T.Buffer((TOKENS,), "int32"),
        inverse: T.Buffer((half,), "float32"),
        angles: T.Buffer((TOKENS, 2 * half), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in T.serial(TOKENS):
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


@T.inline
def rotate(head, norm, angles, t, half):
    """Rotate pairs (i, i + half) of head by the angles of row t."""
    for i in range(half):
        norm[0] = head[i]
        head[i] = norm[0] * angles[t, i] - head[half + i] * angles[t, half + i]
        head[half + i] = head[half + i] * angles[t, i] + norm[0] * angles[t, half + i]


@T.inline
def store(head, h, qkv, queries, cache, positions, sequences, block_table, t, heads, kv_heads, head_dim, dtype):
    """Write one prepared head: to the queries, or with its values to the cache."""
    if h < heads:
        for i in range(head_dim):
            queries[t, h * head_dim + i] = head[i]
    if h >= heads and positions[t] >= 0:
        for i in range(head_dim):
            cache[
                T.cast(block_table[sequences[t], positions[t] // BLOCK], "int64"),
                0,
                h - heads,
                i * BLOCK + positions[t] % BLOCK,
            ] = T.cast(head[i], dtype)
            cache[
                T.cast(block_table[sequences[t], positions[t] // BLOCK], "int64"),
                1,
                h - heads,
                positions[t] % BLOCK * head_dim + i,
            ] = T.cast(qkv[t, (h + kv_heads) * head_dim + i], dtype)


def qkv_append(
    one_row: bool,
    heads: int,
    kv_heads: int,
    head_dim: int,
    half: int,
    max_sequences: int,
    table_width: int,
    cache_dtype: str,
) -> PrimFunc:
    """Rotate the first 2 * half features of each query and key head; store keys and values.

    Arguments: qkv [tokens, (heads + 2 kv_heads) * head_dim], angles [tokens, 2 * half], positions, sequences
    i32 [tokens], block_table i32 [max_sequences, table_width], cache, queries [tokens, heads * head_dim]. Rows with
    a negative position store nothing.
    """
    width = (heads + 2 * kv_heads) * head_dim

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        qkv: T.Buffer((TOKENS, width), "float32"),
        angles: T.Buffer((TOKENS, 2 * half), "float32"),
        positions: T.Buffer((TOKENS,), "int32"),
        sequences: T.Buffer((TOKENS,), "int32"),
        block_table: T.Buffer((max_sequences, table_width), "int32"),
        cache_handle: T.handle,
        queries: T.Buffer((TOKENS, heads * head_dim), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        blocks = T.int64()
        cache = T.match_buffer(cache_handle, (blocks, 2, kv_heads, head_dim * BLOCK), cache_dtype)
        for t in over_rows(TOKENS):
            for h in range(heads + kv_heads):
                with T.sblock("head"):
                    T.reads()
                    T.writes()
                    head = T.sblock_alloc_buffer((head_dim,), "float32")
                    norm = T.sblock_alloc_buffer((1,), "float32")
                    for i in range(head_dim):
                        head[i] = qkv[t, h * head_dim + i]
                    rotate(head, norm, angles, t, half)
                    store(
                        head,
                        h,
                        qkv,
                        queries,
                        cache,
                        positions,
                        sequences,
                        block_table,
                        t,
                        heads,
                        kv_heads,
                        head_dim,
                        cache_dtype,
                    )

    return kernel


def qkv_append_gain(
    one_row: bool,
    heads: int,
    kv_heads: int,
    head_dim: int,
    half: int,
    max_sequences: int,
    table_width: int,
    cache_dtype: str,
    epsilon: float,
) -> PrimFunc:
    """The same with each query and key head normalised first: head / sqrt(mean(head^2) + epsilon) * gain.

    Arguments as `qkv_append` with q_gain, k_gain f32 [head_dim] before the cache.
    """
    width = (heads + 2 * kv_heads) * head_dim

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        qkv: T.Buffer((TOKENS, width), "float32"),
        angles: T.Buffer((TOKENS, 2 * half), "float32"),
        positions: T.Buffer((TOKENS,), "int32"),
        sequences: T.Buffer((TOKENS,), "int32"),
        block_table: T.Buffer((max_sequences, table_width), "int32"),
        q_gain: T.Buffer((head_dim,), "float32"),
        k_gain: T.Buffer((head_dim,), "float32"),
        cache_handle: T.handle,
        queries: T.Buffer((TOKENS, heads * head_dim), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        blocks = T.int64()
        cache = T.match_buffer(cache_handle, (blocks, 2, kv_heads, head_dim * BLOCK), cache_dtype)
        for t in over_rows(TOKENS):
            for h in range(heads + kv_heads):
                with T.sblock("head"):
                    T.reads()
                    T.writes()
                    head = T.sblock_alloc_buffer((head_dim,), "float32")
                    norm = T.sblock_alloc_buffer((1,), "float32")
                    norm[0] = T.float32(0)
                    for i in range(head_dim):
                        head[i] = qkv[t, h * head_dim + i]
                        norm[0] = norm[0] + head[i] * head[i]
                    norm[0] = T.float32(1) / T.sqrt(norm[0] / T.float32(head_dim) + T.float32(epsilon))
                    for i in range(head_dim):
                        head[i] = head[i] * norm[0] * T.if_then_else(h < heads, q_gain[i], k_gain[i])
                    rotate(head, norm, angles, t, half)
                    store(
                        head,
                        h,
                        qkv,
                        queries,
                        cache,
                        positions,
                        sequences,
                        block_table,
                        t,
                        heads,
                        kv_heads,
                        head_dim,
                        cache_dtype,
                    )

    return kernel


def cached_attention(
    symbol: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    max_sequences: int,
    table_width: int,
    cache_dtype: str,
) -> PrimFunc:
    """Attention of each row over its sequence's cache, by the C kernel `symbol` (templates/include/pyc_attention.h).

    Arguments: queries [tokens, heads * head_dim], positions, sequences, block_table, cache, y like queries.
    Rows with a negative position give zeros. Units of UNIT_ROWS rows of one key/value head run in parallel.
    """
    group = heads // kv_heads

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        queries: T.Buffer((TOKENS, heads * head_dim), "float32"),
        positions: T.Buffer((TOKENS,), "int32"),
        sequences: T.Buffer((TOKENS,), "int32"),
        block_table: T.Buffer((max_sequences, table_width), "int32"),
        cache_handle: T.handle,
        y: T.Buffer((TOKENS, heads * head_dim), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        blocks = T.int64()
        cache = T.match_buffer(cache_handle, (blocks, 2, kv_heads, head_dim * BLOCK), cache_dtype)
        for unit in T.parallel(kv_heads * ((group * TOKENS + UNIT_ROWS - 1) // UNIT_ROWS)):
            with T.sblock("unit"):
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
                        cache.data,
                        y.data,
                        T.cast(TOKENS, "int32"),
                        T.cast(unit, "int32"),
                        T.cast(unit + 1, "int32"),
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
