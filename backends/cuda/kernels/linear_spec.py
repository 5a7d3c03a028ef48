"""A linear layer: what it multiplies, in what format."""

from __future__ import annotations

from dataclasses import dataclass

from pyc.backends.cuda.kernels.matrix import MatrixFormat
from pyc.compiler.schemes import Activations

GEMV_ROWS = 8
"""Rows of activations that one matrix instruction takes."""


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """x f32 [rows, inputs] times the transpose of a matrix [outputs, inputs], plus a bias f32 [outputs] if it has one.

    Arrays: "x", those of `matrix.parts`, "bias", and "result" f32 [rows, outputs]. By `activations` x is multiplied as
    "f32": two bf16, whose sum errs by 2^-18 of it at most; "bf16": one; "int8": integers by blocks of 32 inputs beside
    codes of eight bits, else one bf16, which is finer.
    """

    rows: int
    outputs: int
    inputs: int
    matrix: MatrixFormat
    has_bias: bool = False
    activations: Activations = "f32"

    @property
    def is_integer(self) -> bool:
        """Whether activations are rounded to int8: over codes of eight bits. Of fewer, scales of small groups cost more
        than bf16 does, and codes read in a step take less time than rounding to int8 would."""
        return self.activations == "int8" and self.matrix.kind == "INT8"

    @property
    def splits(self) -> bool:
        """Whether activations are two bf16."""
        return self.activations == "f32"

    @property
    def row_bytes(self) -> int:
        """Bytes of an activation as a GEMM reads it."""
        return 1 if self.is_integer else 4 if self.splits else 2
