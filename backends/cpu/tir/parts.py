"""Cuts parallel loops of TIR kernels over rows into parts, as templates/cpu/include/pyc_work_partition.h does in C."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from pyc.backends.cpu.constants import PARTS


def in_parts(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the kernel with `for t in parallel(n)` as PARTS tasks, of rows n * part / PARTS and what follows.

    TVM itself gives a row each to the first tasks where there are fewer rows than tasks. A thread has neighbouring
    tasks, so one thread would have all rows.
    """
    return kernel.with_body(_cut(kernel.body))


def _cut(body: tirx.Stmt) -> tirx.Stmt:
    """Cut the loop that a kernel, or the block around it, consists of."""
    if isinstance(body, SBlockRealize):
        block = body.block
        whole = SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, _cut(block.body))
        return SBlockRealize(body.iter_values, body.predicate, whole)
    if not isinstance(body, tirx.For) or body.kind != tirx.ForKind.PARALLEL:
        return body
    part = tirx.Var("part", "int32")
    rows = tirx.Cast("int64", body.extent)
    start, stop = (tirx.floordiv(rows * tirx.Cast("int64", part + more), PARTS) for more in (0, 1))
    kind = body.loop_var.ty.dtype
    own = tirx.For(body.loop_var, tirx.Cast(kind, start), tirx.Cast(kind, stop - start), tirx.ForKind.SERIAL, body.body)
    return tirx.For(part, tirx.IntImm("int32", 0), tirx.IntImm("int32", PARTS), tirx.ForKind.PARALLEL, own)
