"""Kernels over rows whose results become records at once: a row is quantized while it is in the first-level cache."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize


def into_records(kernel: tirx.PrimFunc, symbol: str, row_bytes: int) -> tirx.PrimFunc:
    """Return `kernel`, whose last argument is its result y [tokens, features], with records after it.

    After each row of y the C kernel `symbol` (a `QuantizeSpec`) makes its record of `row_bytes` bytes, in u8 [tokens,
    row_bytes]; y is left as scratch.
    """
    y = kernel.params[-1]
    records = tirx.decl_buffer((y.shape[0], row_bytes), "uint8", "records")

    def extended(body: tirx.Stmt) -> tirx.Stmt:
        if isinstance(body, SBlockRealize):
            block = body.block
            whole = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, extended(block.body))
            return SBlockRealize(body.iter_values, body.predicate, whole)
        assert isinstance(body, tirx.For), type(body).__name__
        row = [tirx.address_of(tirx.BufferLoad(buffer, [body.loop_var, 0])) for buffer in (y, records)]
        call = tirx.call_extern("int32", symbol, *row, *(tirx.IntImm("int32", number) for number in (1, 0, 1)))
        rows = tirx.SeqStmt([body.body, tirx.Evaluate(call)])
        return tirx.For(body.loop_var, body.min, body.extent, body.kind, rows)

    return tirx.PrimFunc([*kernel.params, records], extended(kernel.body), kernel.ret_type, kernel.attrs)
