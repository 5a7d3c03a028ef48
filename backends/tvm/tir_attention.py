"""Attention kernels in TIR: rotary angles, and wrappers that hand out the work of the C kernels of attention.

Those read and write the paged cache (templates/include/pyc_cache.h has its layout), or attend to an encoder's spans.
Each row is computed by one thread in one order, whatever the batch around it.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from pyc.backends.tvm.tir_norm import TOKENS

UNIT_TOKENS = 16
"""PYC_UNIT_TOKENS of templates/include/pyc_qkv_append.h."""
PARTS = 32
"""Shares of attention that threads take."""

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


def span_attention(symbol: str, width: int) -> PrimFunc:
    """Attention of each row over the rows of its span, by the C kernel `symbol` (pyc_span_attention.h).

    Arguments: qkv [tokens, 3 * width], span_start, span_end i32 [tokens], y [tokens, width]. Rows with an empty span
    give zeros. The kernel itself divides its work into PARTS of about the same cost.
    """

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        qkv: T.Buffer((TOKENS, 3 * width), "float32"),
        span_start: T.Buffer((TOKENS,), "int32"),
        span_end: T.Buffer((TOKENS,), "int32"),
        y: T.Buffer((TOKENS, width), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for part in T.parallel(PARTS):
            with T.sblock("part"):
                T.reads()
                T.writes()
                T.evaluate(
                    T.call_extern(
                        "int32",
                        symbol,
                        qkv.data,
                        span_start.data,
                        span_end.data,
                        y.data,
                        T.cast(TOKENS, "int32"),
                        part,
                        PARTS,
                    )
                )

    return kernel
