"""What compiled code sees of a weight, and which C kernel an operation on it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyc.backends.cpu.kernels.linear import KernelSpec
from pyc.backends.cpu.storage import stored_tensor
from pyc.compiler.schemes import Scheme
from pyc.compiler.weights import Expression

TVM_DTYPES = {"f32": "float32", "f16": "float16", "i32": "int32", "u8": "uint8"}
"""What TVM calls the element types of values and weights."""


@dataclass(frozen=True, slots=True)
class WeightType:
    """A weight as an argument: `shape` of the array as stored, `rows` x `columns` of the matrix it stands for."""

    dtype: str
    shape: tuple[int, ...]
    rows: int
    columns: int
    scheme: Scheme


def weight_types(weights: Mapping[str, Expression]) -> dict[str, WeightType]:
    """Return the type of every weight of a lowered module."""
    found: dict[str, WeightType] = {}
    for name, expression in weights.items():
        stored = stored_tensor(expression)
        found[name] = WeightType(stored.dtype, stored.shape, stored.rows, stored.columns, stored.scheme)
    return found


def matmul_kernel(weight: WeightType, *, has_bias: bool) -> KernelSpec:
    """Return the C kernel that multiplies by a packed weight."""
    return KernelSpec("linear", weight.rows, weight.columns, weight.scheme, has_bias)


def embedding_kernel(weight: WeightType) -> KernelSpec:
    """Return the C kernel that gathers rows of a packed table."""
    return KernelSpec("embedding", weight.rows, weight.columns, weight.scheme)
