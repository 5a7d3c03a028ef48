"""TIR wrappers of the C kernels: they hand pointers and row ranges to them, in parallel over panels or rows.

A call of a C kernel names its symbol; the object file is linked into the same library. A unit of a product is a run of
panels for a chunk of tokens, runs innermost: a thread's neighbouring units read the same activations.
"""

from __future__ import annotations

from tvm.ir import Expr as PrimExpr
from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from pyc.backends.tvm.tir_norm import TOKENS

PANELS_A_CALL = 4
"""Panels (16 outputs each) that one call computes."""

CHUNK = 64
"""Tokens that one call takes at most, in tiles of TILE: their records stay in the second-level cache."""

TILE = 8
"""Tokens of the largest register tile."""


def _chunks(tokens: PrimExpr) -> PrimExpr:
    return (tokens + (CHUNK - 1)) // CHUNK


def _chunk_start(index: PrimExpr, tokens: PrimExpr) -> PrimExpr:
    """First token of chunk `index` of `_chunks`, which are whole tiles and equal up to one."""
    tiles = (tokens + (TILE - 1)) // TILE
    return T.cast(T.min(index * tiles // _chunks(tokens) * TILE, tokens), "int32")


def linear(symbol: str, row_width: int, row_dtype: str, panels: tuple[int, int], outputs: int) -> PrimFunc:
    """y = x W^T; arguments x [tokens, row_width], weight u8 panels, y f32 [tokens, outputs]."""
    runs = -(-panels[0] // PANELS_A_CALL)

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((TOKENS, row_width), row_dtype),
        weight: T.Buffer(panels, "uint8"),
        y: T.Buffer((TOKENS, outputs), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for unit in T.parallel(_chunks(TOKENS) * runs):
            with T.sblock("unit"):
                T.reads()
                T.writes()
                T.evaluate(
                    T.call_extern(
                        "int32",
                        symbol,
                        x.data,
                        weight.data,
                        y.data,
                        _chunk_start(unit // runs, TOKENS),
                        _chunk_start(unit // runs + 1, TOKENS),
                        unit % runs * PANELS_A_CALL,
                        T.min(unit % runs * PANELS_A_CALL + PANELS_A_CALL, panels[0]),
                    )
                )

    return kernel


def linear_bias(symbol: str, row_width: int, row_dtype: str, panels: tuple[int, int], outputs: int) -> PrimFunc:
    """y = x W^T + bias; arguments x, weight, bias f32 [outputs], y."""
    runs = -(-panels[0] // PANELS_A_CALL)

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((TOKENS, row_width), row_dtype),
        weight: T.Buffer(panels, "uint8"),
        bias: T.Buffer((outputs,), "float32"),
        y: T.Buffer((TOKENS, outputs), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for unit in T.parallel(_chunks(TOKENS) * runs):
            with T.sblock("unit"):
                T.reads()
                T.writes()
                T.evaluate(
                    T.call_extern(
                        "int32",
                        symbol,
                        x.data,
                        weight.data,
                        bias.data,
                        y.data,
                        _chunk_start(unit // runs, TOKENS),
                        _chunk_start(unit // runs + 1, TOKENS),
                        unit % runs * PANELS_A_CALL,
                        T.min(unit % runs * PANELS_A_CALL + PANELS_A_CALL, panels[0]),
                    )
                )

    return kernel


def quantize_rows(one_row: bool, symbol: str, features: int, row_bytes: int) -> PrimFunc:
    """Rows f32 [tokens, features] to int8 records u8 [tokens, row_bytes]."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((TOKENS, features), "float32"), records: T.Buffer((TOKENS, row_bytes), "uint8")):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            with T.sblock("row"):
                T.reads()
                T.writes()
                T.evaluate(
                    T.call_extern("int32", symbol, x.data, records.data, T.cast(t, "int32"), T.cast(t + 1, "int32"))
                )

    return kernel


def embedding(symbol: str, panels: tuple[int, int], features: int) -> PrimFunc:
    """Rows `ids` of a packed table, f32 [tokens, features]; arguments ids, table, y."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        ids: T.Buffer((TOKENS,), "int32"),
        table: T.Buffer(panels, "uint8"),
        y: T.Buffer((TOKENS, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for _ in T.serial(1):
            with T.sblock("gather"):
                T.reads()
                T.writes()
                T.evaluate(T.call_extern("int32", symbol, table.data, ids.data, y.data, T.cast(TOKENS, "int32")))

    return kernel
