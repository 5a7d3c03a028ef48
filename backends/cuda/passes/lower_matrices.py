"""Lower matrices to what CUDA's kernels read: rows of numbers, or codes, scales, zero points and factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.backends.cuda.layouts import PARTS, layouts_of
from pyc.backends.cuda.operators import ALL_OPERATORS
from pyc.backends.lowering.map_matrices import map_matrices
from pyc.backends.onnx.layouts import ROWS
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.ir import Module, Operation, Scalar
from pyc.compiler.quantization import require_divisible
from pyc.compiler.schemes import Quantized
from pyc.compiler.weights import Expression, Packed


@dataclass(frozen=True, slots=True)
class LowerMatrices:
    """Splits quantized matrices into their parts, and wraps the others in Packed."""

    name: ClassVar[str] = "lower_matrices"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ("stacked",)
    provides: ClassVar[tuple[str, ...]] = ("packed",)

    def options(self) -> dict[str, str]:
        """It has none."""
        return {}

    def run(self, module: Module) -> Module:
        """Return the module with matrices in rows or parts. Raises QuantizeError when groups do not fit."""
        return map_matrices(module, ALL_OPERATORS, _lowered)


def _lowered(operation: Operation, base: Expression, made: dict[str, Expression]) -> Operation:
    name, *rest = operation.weights
    scheme = stored_scheme(base)
    if not isinstance(scheme, Quantized):
        made[name] = Packed(base, ROWS)
        return operation
    require_divisible(scheme, base.shape[1])
    layouts = layouts_of(scheme)
    made.update({f"{name}.{part}": Packed(base, layout) for part, layout in layouts.items()})
    parts = tuple(f"{name}.{part}" if part in layouts else "" for part in PARTS)
    attributes: dict[str, Scalar] = {"features": base.shape[1], "scheme": scheme.name}
    return replace(
        operation,
        kind=f"coded_{operation.kind}",
        weights=(*parts, *rest),
        attributes=tuple(sorted(attributes.items())),
    )
