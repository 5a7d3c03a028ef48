"""How matrices lie in an artifact for CUDA: row after row, those of quantized schemes in parts.

| layout | dtype and shape of a matrix [N, K] |
|---|---|
| nibble-codes | u8 [N, K / 2], codes of lookup tables of 4 bits, two in a byte, the first in the lower half |
| plane-codes | u8 [N, K / 32, 4 b], codes of lookup tables of b = 5, 3 or 2 bits, by blocks of 32: docs/tensor-layouts.md |
| bfloat-scales | bf16 [N, K / group]: of symmetric int4, and of lookup tables, where the lowest bit says that the group's entries are shifted |
| half-scales | f16 [N, groups]: of asymmetric int4, and of int8 in groups |
| row-scales | f32 [N, 1]: of int8 |
| row-factors | f32 [N, 1], which multiply scales (nvfp4), or are all there are (ternary) |

The codes of other schemes, zero points, floating point of 8 bits with its scales, and matrices that are not quantized lie
as ONNX Runtime reads them (`backends.onnx.layouts`), and an artifact for both has them once. Scales are exact: those
of int4 and of lookup tables have four significant bits, and bf16 has eight.
"""  # noqa: E501

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyc.backends.lowering.row_storage import RowStorage
from pyc.backends.onnx import layouts as onnx_layouts
from pyc.backends.onnx.layouts import CODES, FLOAT8_CODES, FLOAT8_SCALES, ROWS, SCALES, ZERO_POINTS
from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.quantization import BLOCK, QuantizedRows
from pyc.compiler.schemes import Float8, Int4Group, Int8Channel, Int8Group, LookupGroup, Quantized
from pyc.compiler.storage import StoredTensor
from pyc.compiler.weights import Packed
from pyc.runtime.artifact.dtypes import DtypeName
from pyc.runtime.errors import QuantizeError
from pyc.runtime.host.rounding import ceil_div

NIBBLES = "nibble-codes"
PLANES = "plane-codes"
BFLOAT_SCALES = "bfloat-scales"
HALF_SCALES = "half-scales"
ROW_SCALES = "row-scales"
ROW_FACTORS = "row-factors"
"""The build cache keeps bytes by these names: what changes them changes the name."""

_SHARED = frozenset({ROWS, CODES, SCALES, ZERO_POINTS, FLOAT8_CODES, FLOAT8_SCALES})
PARTS = ("codes", "scales", "zero_points", "factors")
"""The parts of a quantized matrix, as operators take them."""


def layouts_of(scheme: Quantized) -> dict[str, str]:
    """Return the layout of each part of a matrix that `scheme` has."""
    match scheme:
        case Float8():
            return {"codes": FLOAT8_CODES, "scales": FLOAT8_SCALES}
        case Int4Group(symmetric=True):
            return {"codes": CODES, "scales": BFLOAT_SCALES}
        case Int4Group():
            return {"codes": CODES, "scales": HALF_SCALES, "zero_points": ZERO_POINTS}
        case Int8Group():
            return {"codes": CODES, "scales": HALF_SCALES}
        case Int8Channel():
            return {"codes": CODES, "scales": ROW_SCALES}
        case LookupGroup():
            codes = NIBBLES if CODEBOOKS[scheme.codebook].bits == 4 else PLANES
            if scheme.scales == "row":
                return {"codes": codes, "scales": ROW_FACTORS}
            factors = {"factors": ROW_FACTORS} if scheme.has_row_factors else {}
            return {"codes": codes, "scales": BFLOAT_SCALES, **factors}


def stored_tensor(expression: Packed) -> StoredTensor:
    """Return how a matrix, or a part of a quantized one, is stored."""
    if expression.layout in _SHARED:
        return onnx_layouts.stored_tensor(expression)
    scheme = stored_scheme(expression.base)
    rows, columns = expression.shape
    dtype: DtypeName
    shape: tuple[int, ...]
    match expression.layout:
        case "nibble-codes":
            dtype, shape = "u8", (rows, ceil_div(columns, 2))
        case "plane-codes":
            assert isinstance(scheme, LookupGroup)
            dtype, shape = "u8", (rows, columns // 32, 4 * CODEBOOKS[scheme.codebook].bits)
        case "bfloat-scales" | "half-scales":
            assert isinstance(scheme, Int4Group | Int8Group | LookupGroup)
            dtype = "bf16" if expression.layout == BFLOAT_SCALES else "f16"
            shape = (rows, ceil_div(columns, scheme.group_size))
        case "row-scales" | "row-factors":
            dtype, shape = "f32", (rows, 1)
        case layout:
            raise AssertionError(f"the layout {layout!r} is another backend's")
    return StoredTensor(dtype, shape, rows, columns, scheme)


def laid_out(stored: QuantizedRows, scheme: Quantized, layout: str) -> NDArray[np.generic]:
    """Return rows of codes as `layout` has them; the first dimension is that of `stored`."""
    if layout in _SHARED:
        return onnx_layouts.laid_out(stored, scheme, layout)
    match layout:
        case "nibble-codes":
            assert isinstance(scheme, LookupGroup)
            entries = stored.codes & np.uint8((1 << CODEBOOKS[scheme.codebook].bits) - 1)
            return cast("NDArray[np.generic]", entries[:, 0::2] | entries[:, 1::2] << np.uint8(4))
        case "plane-codes":
            assert isinstance(scheme, LookupGroup)
            return _planes(stored.codes, CODEBOOKS[scheme.codebook].bits)
        case "bfloat-scales":
            return _bfloats(stored, scheme)
        case "half-scales":
            return stored.scale
        case "row-scales":
            return stored.scale
        case _:
            assert layout == ROW_FACTORS and stored.outer is not None, layout
            return stored.outer


def _planes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return codes u8 [rows, K] of 5, 3 or 2 bits as blocks u8 [rows, K / 32, 4 bits]: of block b and code 8 t + j the
    lower four of 5 bits from bit 4 j of its 32-bit word t on, the lower two of 3 and 2 from bit 4 (j % 4) + 2 (j / 4)
    of its 16-bit word t on, the highest of 5 and 3 in bit 4 j + t of the 32-bit word behind."""
    rows = len(codes)
    if bits == 5:
        nibbles = (codes & np.uint8(15)).reshape(rows, -1, BLOCK)
    else:
        pairs = (codes & np.uint8(3)).reshape(rows, -1, 4, 2, 4)  # b, t, j / 4, j % 4
        nibbles = (pairs[:, :, :, 0] | pairs[:, :, :, 1] << np.uint8(2)).reshape(rows, -1, BLOCK // 2)
    planes = [nibbles[..., 0::2] | nibbles[..., 1::2] << np.uint8(4)]
    if bits & 1:
        highest = codes.reshape(rows, -1, 4, 8) >> np.uint8(bits - 1) & np.uint8(1)
        by_code = np.bitwise_or.reduce(highest << np.arange(4, dtype=np.uint8)[:, None], axis=2)  # [rows, b, j]
        planes.append(by_code[..., 0::2] | by_code[..., 1::2] << np.uint8(4))
    return np.concatenate(planes, axis=2)


def _bfloats(stored: QuantizedRows, scheme: Quantized) -> NDArray[np.uint16]:
    """Return scales [rows, groups] in 16 bits, the lowest of which tells that a group is shifted."""
    bits = np.ascontiguousarray(stored.scale, np.float32).view(np.uint32)
    if (bits & np.uint32(0x1FFFF)).any():
        raise QuantizeError(f"{scheme.name}: a scale has more significant bits than 7; build it for another backend")
    found = (bits >> np.uint32(16)).astype(np.uint16)
    if isinstance(scheme, LookupGroup):
        first = stored.codes[:, :: scheme.group_size]
        found |= first.astype(np.uint16) >> np.uint16(CODEBOOKS[scheme.codebook].bits)
    return found


STORAGE = RowStorage(stored_tensor, laid_out)
"""The bytes of weights for CUDA."""
