"""Elementwise kernels in TIR over f32 rows [tokens, features]."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from pyc.backends.cpu.tir import math
from pyc.backends.cpu.tir.norm import TOKENS


def add(one_row: bool, features: int) -> PrimFunc:
    """y = a + b."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        a: T.Buffer((TOKENS, features), "float32"),
        b: T.Buffer((TOKENS, features), "float32"),
        y: T.Buffer((TOKENS, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(features):
                y[t, i] = a[t, i] + b[t, i]

    return kernel


def add_row(one_row: bool, features: int, rows: int, index: int) -> PrimFunc:
    """y = a + table[index]; arguments a, table, y."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        a: T.Buffer((TOKENS, features), "float32"),
        table: T.Buffer((rows, features), "float32"),
        y: T.Buffer((TOKENS, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(features):
                y[t, i] = a[t, i] + table[index, i]

    return kernel


def select_row(dtype: str, features: int) -> PrimFunc:
    """y = x[row]; arguments x [tokens, features], row i32 [1] (outside of x: the nearest), y [1, features]."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((TOKENS, features), dtype),
        row: T.Buffer((1,), "int32"),
        y: T.Buffer((1, features), dtype),
    ):
        T.func_attr({"tir.noalias": True})
        for i in range(features):
            y[0, i] = x[T.max(T.min(T.cast(row[0], "int64"), TOKENS - 1), T.int64(0)), i]

    return kernel


def select_number(dtype: str) -> PrimFunc:
    """The same of x [tokens]: y [1] = x[row]."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((TOKENS,), dtype), row: T.Buffer((1,), "int32"), y: T.Buffer((1,), dtype)):
        T.func_attr({"tir.noalias": True})
        for i in range(1):
            y[i] = x[T.max(T.min(T.cast(row[0], "int64"), TOKENS - 1), T.int64(0))]

    return kernel


def copy_columns(one_row: bool, source: int, start: int, features: int) -> PrimFunc:
    """y = x[:, start : start + features], x [tokens, source]."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((TOKENS, source), "float32"), y: T.Buffer((TOKENS, features), "float32")):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(features):
                y[t, i] = x[t, start + i]

    return kernel


def concat(one_row: bool, left: int, right: int) -> PrimFunc:
    """y = [a, b] along the columns."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        a: T.Buffer((TOKENS, left), "float32"),
        b: T.Buffer((TOKENS, right), "float32"),
        y: T.Buffer((TOKENS, left + right), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(left):
                y[t, i] = a[t, i]
            for i in range(right):
                y[t, left + i] = b[t, i]

    return kernel


def activation(one_row: bool, features: int, function: str) -> PrimFunc:
    """y = act(x)."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((TOKENS, features), "float32"), y: T.Buffer((TOKENS, features), "float32")):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(features):
                y[t, i] = math.activate(function, x[t, i])

    return kernel


def gated(one_row: bool, features: int, function: str) -> PrimFunc:
    """y = act(gate) * up."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        gate: T.Buffer((TOKENS, features), "float32"),
        up: T.Buffer((TOKENS, features), "float32"),
        y: T.Buffer((TOKENS, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(features):
                y[t, i] = math.activate(function, gate[t, i]) * up[t, i]

    return kernel


def gated_pair(one_row: bool, features: int, function: str) -> PrimFunc:
    """y = act(x[:, :features]) * x[:, features:], x [tokens, 2 * features]."""

    over_rows = T.serial if one_row else T.parallel

    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((TOKENS, 2 * features), "float32"), y: T.Buffer((TOKENS, features), "float32")):
        T.func_attr({"tir.noalias": True})
        for t in over_rows(TOKENS):
            for i in range(features):
                y[t, i] = math.activate(function, x[t, i]) * x[t, features + i]

    return kernel


def pool(sequences: int, features: int, mode: str, normalize: bool) -> PrimFunc:
    """Row s of y is the mean of x's rows [start[s], end[s]), or row start[s] for mode "cls".

    `normalize` divides by the Euclidean norm, at least 1e-12. An empty range gives zeros.
    Arguments x [tokens, features], start, end i32 [sequences], y [sequences, features].
    """
    takes_mean = mode == "mean"

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        x: T.Buffer((TOKENS, features), "float32"),
        start: T.Buffer((sequences,), "int32"),
        end: T.Buffer((sequences,), "int32"),
        y: T.Buffer((sequences, features), "float32"),
    ):
        T.func_attr({"tir.noalias": True})
        for s in T.serial(sequences):
            with T.sblock("sequence"):
                T.reads()
                T.writes()
                count = T.sblock_alloc_buffer((1,), "int32")
                norm = T.sblock_alloc_buffer((1,), "float32")
                count[0] = T.max(end[s] - start[s], 0)
                if not takes_mean:
                    count[0] = T.min(count[0], 1)
                for i in range(features):
                    y[s, i] = T.float32(0)
                for t in range(count[0]):
                    for i in range(features):
                        y[s, i] = y[s, i] + x[start[s] + t, i]
                norm[0] = T.float32(0)
                for i in range(features):
                    y[s, i] = y[s, i] / T.cast(T.max(count[0], 1), "float32")
                    norm[0] = norm[0] + y[s, i] * y[s, i]
                if normalize:
                    norm[0] = T.max(T.sqrt(norm[0]), T.float32(1e-12))
                    for i in range(features):
                        y[s, i] = y[s, i] / norm[0]

    return kernel
