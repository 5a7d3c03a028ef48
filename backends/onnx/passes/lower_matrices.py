"""Lower matrices to what ONNX Runtime reads: rows, or codes, scales and zero points in blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.backends.lowering.map_matrices import map_matrices
from pyc.backends.onnx.layouts import CODES, FLOAT8_CODES, FLOAT8_SCALES, ROWS, SCALES, ZERO_POINTS, blocks_of
from pyc.backends.onnx.operators import ALL_OPERATORS
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.fp8 import BLOCK_SIDE
from pyc.compiler.ir import Module, Operation, Scalar
from pyc.compiler.quantization import require_divisible
from pyc.compiler.schemes import Float8, Int4Group, Quantized, activations_of
from pyc.compiler.weights import Expression, Packed
from pyc.runtime.errors import LowerError


@dataclass(frozen=True, slots=True)
class LowerMatrices:
    """Splits quantized matrices into their parts, and wraps the others in Packed."""

    name: ClassVar[str] = "lower_matrices"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("packed",)

    def options(self) -> dict[str, str]:
        """It has none."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with matrices in blocks or rows. Raises QuantizeError when blocks do not fit, and
        LowerError for activations in floating point of 8 bits, which ONNX has no operator to round to."""
        return map_matrices(module, ALL_OPERATORS, _lowered)


def _lowered(operation: Operation, base: Expression, made: dict[str, Expression]) -> Operation:
    name, *rest = operation.weights
    scheme = stored_scheme(base)
    if not isinstance(scheme, Quantized):
        made[name] = Packed(base, ROWS)
        return operation
    if operation.kind == "linear" and (activations := activations_of(scheme)) in ("fp8", "mxfp8"):
        raise LowerError(
            f"quantize.activations: got {activations!r} ({name}), which ONNX has no operator for, nor TensorRT; "
            "write int8, f32 or bf16 to build and export for them, or build for the backends cpu and cuda alone"
        )
    if isinstance(scheme, Float8):
        return _float8(operation, base, scheme, made)
    require_divisible(scheme, base.shape[1])
    layouts = {f"{name}.codes": CODES, f"{name}.scales": SCALES}
    if isinstance(scheme, Int4Group) and not scheme.symmetric:
        layouts[f"{name}.zero_points"] = ZERO_POINTS
    made.update({part: Packed(base, layout) for part, layout in layouts.items()})
    parts = (*layouts, *[""] * (3 - len(layouts)))
    blocks = blocks_of(scheme, base.shape[1])
    attributes: dict[str, Scalar] = {"bits": blocks.bits, "block": blocks.block}
    if operation.kind == "linear":
        attributes["activations"] = activations_of(scheme)
    return replace(
        operation,
        kind=f"blockwise_{operation.kind}",
        weights=(*parts, *rest),
        attributes=tuple(sorted(attributes.items())),
    )


def _float8(operation: Operation, base: Expression, scheme: Float8, made: dict[str, Expression]) -> Operation:
    name, *rest = operation.weights
    layouts = {f"{name}.codes": FLOAT8_CODES, f"{name}.scales": FLOAT8_SCALES}
    made.update({part: Packed(base, layout) for part, layout in layouts.items()})
    attributes: dict[str, Scalar] = {
        "block": BLOCK_SIDE if scheme.scaling == "block" else 0,
        "format": scheme.format,
    }
    return replace(
        operation,
        kind=f"float8_{operation.kind}",
        weights=(*layouts, *rest),
        attributes=tuple(sorted(attributes.items())),
    )
