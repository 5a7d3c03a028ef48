"""Kernels over rows with what comes before and after them, a row at a time, while it is in the first-level cache."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize


def of_sum(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `kernel` (x, ..., y) as (a, b, ..., x, y), which computes x = a + b first, all [tokens, features]."""
    x, y = kernel.params[0], kernel.params[-1]
    a, b = (tirx.decl_buffer(x.shape, "float32", name) for name in ("a", "b"))

    def with_sum(row: tirx.Var, body: tirx.Stmt) -> list[tirx.Stmt]:
        i = tirx.Var("i", x.shape[1].ty.dtype)
        value = tirx.BufferLoad(a, [row, i]) + tirx.BufferLoad(b, [row, i])
        store = tirx.BufferStore(x, value, [row, i])
        return [tirx.For(i, tirx.IntImm(i.ty.dtype, 0), x.shape[1], tirx.ForKind.SERIAL, store), body]

    body = _over_rows(kernel.body, with_sum)
    return tirx.PrimFunc([a, b, *kernel.params[1:-1], x, y], body, kernel.ret_type, kernel.attrs)


def in_place(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `kernel` (a, b, ..., x, y, quantized), of a sum, as (a, b, ..., quantized): x takes a's place, y takes
    b's."""
    a, b, *_, x, y, _ = kernel.params
    return kernel.specialize({x: a, y: b})


def into_quantized(kernel: tirx.PrimFunc, symbol: str, row_bytes: int) -> tirx.PrimFunc:
    """Return `kernel`, whose last argument is its result y [tokens, features], with quantized rows after it.

    These are u8 [tokens, row_bytes]: the C kernel `symbol` (a `QuantizeSpec`) quantizes each row of y, which is
    left as scratch.
    """
    y = kernel.params[-1]
    quantized = tirx.decl_buffer((y.shape[0], row_bytes), "uint8", "quantized")

    def with_quantized(row: tirx.Var, body: tirx.Stmt) -> list[tirx.Stmt]:
        tokens, part = (tirx.Cast("int32", number) for number in (y.shape[0], row))
        call = tirx.call_extern("int32", symbol, y.data, quantized.data, tokens, part, tokens)
        return [body, tirx.Evaluate(call)]

    body = _over_rows(kernel.body, with_quantized)
    return tirx.PrimFunc([*kernel.params, quantized], body, kernel.ret_type, kernel.attrs)


def _over_rows(body: tirx.Stmt, change: Callable[[tirx.Var, tirx.Stmt], list[tirx.Stmt]]) -> tirx.Stmt:
    """Change what the loop over rows does for each, given the row and what it does now."""
    if isinstance(body, SBlockRealize):
        block = body.block
        changed = _over_rows(block.body, change)
        whole = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, changed)
        return SBlockRealize(body.iter_values, body.predicate, whole)
    assert isinstance(body, tirx.For), type(body).__name__
    rows = tirx.SeqStmt(change(body.loop_var, body.body))
    return tirx.For(body.loop_var, body.min, body.extent, body.kind, rows)
