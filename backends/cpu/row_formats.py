"""What matmuls of the CPU read instead of f32 activations: rows that are quantized, or rounded, first."""

from __future__ import annotations

from typing import Literal

from pyc.compiler.schemes import Dense, Float8, Int4Group, LookupGroup, Scheme, activations_of

RowFormat = Literal["float_scale", "power_of_two", "interleaved", "bf16"]
"""int8 with the scales max |x| / 127 of a group, or the power of two at or above it; bf16."""

Rounding = Literal["fp8", "mxfp8"]
"""e4m3 with a power of two for a row, or for a block of 32 inputs (`compiler.mxfp8`); rows stay f32."""


def row_format_of(scheme: Scheme) -> RowFormat | None:
    """Return the format of the rows that matmuls of `scheme` read; None: f32 activations, rounded ones among them.

    Powers of two are faster and cost half a bit; beside the error of int4 weights that is nothing. Scales that are
    bytes can be folded into the codes, for which many rows are interleaved.
    """
    if isinstance(scheme, Dense):
        return "bf16" if scheme == Dense("bf16", "bf16") else None
    if isinstance(scheme, Float8):
        return "bf16" if scheme.activations == "bf16" else None
    if scheme.activations != "int8":
        return None
    if isinstance(scheme, LookupGroup):
        return "power_of_two"
    if not isinstance(scheme, Int4Group):
        return "float_scale"
    return "interleaved" if scheme.symmetric else "power_of_two"


def rounding_of(scheme: Scheme) -> Rounding | None:
    """Return what the f32 activations that matmuls of `scheme` read are rounded to before; None: they are as they were.

    A scheme that is rounded has no row format.
    """
    activations = activations_of(scheme)
    return activations if activations == "fp8" or activations == "mxfp8" else None


def is_split(scheme: Scheme) -> bool:
    """Return whether AMX multiplies weights of `scheme` exactly, by f32 activations that are split in three.

    Those are numbers of bf16, or become them without rounding; a scale for each row multiplies the sum.
    """
    if row_format_of(scheme) is not None:
        return False
    return scheme.name == "bf16" or (isinstance(scheme, Float8) and scheme.scaling != "block")
