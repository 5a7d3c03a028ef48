"""A linear layer: what it multiplies, in what format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyc.backends.cuda.kernels.matrix import MatrixFormat
from pyc.backends.cuda.kernels.rounded_rows import RoundedRows
from pyc.compiler.schemes import Activations

GEMV_ROWS = 8
"""Rows of activations that one matrix instruction takes."""
GATED_ROWS = 8
"""Rows of the matrix by which a gate is before what it gates, in tiles: a thread has the sums of both."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a layer does with its sums before it stores them (`templates/cuda/include/gemv_epilogue.cuh`, and
    `linear_sums.cuh` of GEMMs, which gate alone).

    `gate`: a function of the first half of outputs, which then multiplies the second; "result" is [rows, outputs / 2],
    f32 or, of a GEMM, `rounded`. `partials`, not 0: sums are divided by the root of a row's mean square, plus
    `epsilon`, whose squares are "squares" f32 [rows, partials]. `adds`: "addend" f32 [rows, outputs] is added, and
    squares of the total go to "total_squares" f32 [rows, `kernels.gemv.squares_of`]; with `has_gain`, the total times
    "gain" f32 [outputs] to "scaled".
    """

    gate: str = ""
    rounded: RoundedRows | None = None
    partials: int = 0
    epsilon: float = 0.0
    adds: bool = False
    has_gain: bool = False


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """x f32 [rows, inputs] times the transpose of a matrix [outputs, inputs], plus a bias f32 [outputs] if it has one.

    Arrays: "x", those of `matrix.parts`, "bias", and "result" f32 [rows, outputs]. By `activations` x is multiplied as
    "f32": two bf16, whose sum errs by 2^-18 of it at most; "bf16": one; "int8": integers by blocks of 32 inputs beside
    codes of eight bits, else one bf16, which is finer; "mxfp8": numbers of e4m3 by blocks of 32 (`compiler.mxfp8`);
    "fp8": numbers of e4m3 by rows, where warpgroups multiply floating point of 8 bits, else one bf16, which is finer.
    """

    rows: int
    outputs: int
    inputs: int
    matrix: MatrixFormat
    has_bias: bool = False
    activations: Activations = "f32"
    epilogue: Epilogue = Epilogue()

    @property
    def takes_norm(self) -> bool:
        """Whether its epilogue may have norms: of a GEMV, but for one that rounds what the norm makes of its inputs to
        MXFP8, as CPUs do."""
        return self.rows <= GEMV_ROWS and not self.is_mxfp8

    @property
    def is_integer(self) -> bool:
        """Whether activations are rounded to int8: over codes of eight bits. Of fewer, scales of small groups cost more
        than bf16 does, and codes read in a step take less time than rounding to int8 would."""
        return self.activations == "int8" and self.matrix.kind == "INT8"

    @property
    def is_mxfp8(self) -> bool:
        """Whether activations are rounded to MXFP8."""
        return self.activations == "mxfp8"

    @property
    def has_byte_rows(self) -> bool:
        """Whether a GEMM multiplies bytes by bytes: integers, or floating point of 8 bits by MXFP8.

        A GEMV, which waits for the matrix, and GEMMs of other matrices multiply what is rounded to MXFP8 as bf16, which
        holds it exactly.
        """
        return self.is_integer or (self.is_mxfp8 and self.matrix.kind in ("E4M3", "E5M2"))

    @property
    def rounding(self) -> Literal["F32", "BF16", "INT8", "MXFP8"]:
        """What a GEMV does with activations: the enumerator of `pyc::Activations`."""
        if self.is_integer:
            return "INT8"
        return "MXFP8" if self.is_mxfp8 else "F32" if self.splits else "BF16"

    @property
    def splits(self) -> bool:
        """Whether activations are two bf16."""
        return self.activations == "f32"

    @property
    def row_bytes(self) -> int:
        """Bytes of an activation as a GEMM reads it."""
        return 1 if self.has_byte_rows else 4 if self.splits else 2
