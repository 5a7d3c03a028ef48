"""C kernels as TIR functions: the parts of a kernel's work as a parallel loop, built without TVMScript (30 ms each).

A call of a C kernel names its symbol; the object file is linked into the same library.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import tirx

from pyc.backends.cpu.constants import PARTS


@dataclass(frozen=True, slots=True)
class Argument:
    """An array: its shape, where names stand for sizes known when it is called, and its TVM dtype."""

    shape: tuple[int | str, ...]
    dtype: str


def kernel(
    symbol: str, arguments: tuple[Argument, ...], alone: bool, next_weights: Argument | None, told_threads: bool
) -> tirx.PrimFunc:
    """The function that runs f(arguments ..., int32 tokens, int32 part, int32 parts) for all parts, `symbol` being f.

    The last of `arguments` is the result; one of them has the size "tokens". `alone`: the calling thread does it in one
    part. `told_threads`: behind the tokens, f takes how many threads share the parts. `next_weights` is an argument
    before the result: weights that the next matmul reads, which free threads prefetch (templates/cpu/thread_pool.c).
    """
    sizes: dict[str, tirx.Var] = {}
    buffers = [_buffer(f"p{index}", argument, sizes) for index, argument in enumerate(arguments)]
    last = [tirx.IntImm("int32", number) for number in ((0, 1) if alone else (0, PARTS))]
    part = tirx.Var("part", "int32")
    share = (last[0] if alone else part, last[1])
    pointers = [buffer.data for buffer in buffers]
    sharing = (tirx.call_extern("int32", "pyc_threads"),) if told_threads else ()
    call = tirx.Evaluate(
        tirx.call_extern("int32", symbol, *pointers, tirx.Cast("int32", sizes["tokens"]), *sharing, *share)
    )
    body: tirx.Stmt = call if alone else tirx.For(part, *last, tirx.ForKind.PARALLEL, call)
    if next_weights is not None:
        buffer = _buffer("next_weights", next_weights, sizes)
        buffers.insert(-1, buffer)
        size = tirx.IntImm("int64", _bytes(next_weights))
        body = tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("int32", "pyc_prefetch_next", buffer.data, size)), body])
    return tirx.PrimFunc(buffers, body).with_attr("tir.noalias", True)


def _buffer(name: str, argument: Argument, sizes: dict[str, tirx.Var]) -> tirx.Buffer:
    shape = [
        size if isinstance(size, int) else sizes.setdefault(size, tirx.Var(size, "int64")) for size in argument.shape
    ]
    return tirx.decl_buffer(shape, argument.dtype, name)


def _bytes(argument: Argument) -> int:
    sizes = [size for size in argument.shape if isinstance(size, int)]
    assert len(sizes) == len(argument.shape), f"{argument.shape} is not known before the call"
    return prod(sizes) * int(tvm.DataType(argument.dtype).bits) // 8
