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

    Arrays: "x", those of `matrix.parts`, "bias", and "result" f32 [rows, outputs]. `activations`: "bf16" rounds x to
    bf16; "int8" rounds it to int8 by blocks of 32 inputs, where that is faster (`is_integer`); otherwise x is two
    bf16, whose sum errs by 2^-18 of it at most.
    """

    rows: int
    outputs: int
    inputs: int
    matrix: MatrixFormat
    has_bias: bool = False
    activations: Activations = "f32"

    @property
    def is_integer(self) -> bool:
        """Whether activations are rounded to int8: of a GEMM over codes of integers, and scales of 32 or more."""
        is_integers = self.matrix.kind in ("INT8", "INT4", "LOOKUP") and not self.matrix.has_short_groups
        return self.activations == "int8" and is_integers and self.rows > GEMV_ROWS

    @property
    def splits(self) -> bool:
        """Whether activations are two bf16."""
        return self.activations != "bf16" and not self.is_integer

    @property
    def row_bytes(self) -> int:
        """Bytes of an activation as a GEMM reads it."""
        return 1 if self.is_integer else 4 if self.splits else 2
