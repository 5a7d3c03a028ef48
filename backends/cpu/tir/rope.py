"""Rotary angles in TIR."""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from pyc.backends.cpu.tir.norm import TOKENS


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
