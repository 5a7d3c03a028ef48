"""How matrices lie in an artifact for ONNX: row after row, those of quantized schemes as codes, scales and zero points.

| layout | dtype and shape of a matrix [N, K] |
|---|---|
| rows | the scheme's own dtype, [N, K] |
| block-codes | u8 [N, blocks, block * bits / 8]; of two codes of four bits in a byte the first is the lower |
| block-scales | f32 [N, blocks] |
| block-zero-points | u8 [N, ceil(blocks / 2)], two in a byte as codes (asymmetric int4 alone) |
| float8-codes | u8 [N, K], floating point of 8 bits |
| float8-scales | f32 [N, 1], or [N, ceil(K / 128)] where blocks have scales |

A weight is scale * (code - zero point); without zero points it is 8 of codes of four bits, 128 of eight. The last block
of a row may be padded, with the code that stands for zero. This is how ONNX Runtime's MatMulNBits reads matrices. It
has no lookup tables: their entries are codes of eight bits. Of floating point of 8 bits a weight is scale times the
number of the code, as `compiler.fp8` has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.backends.lowering.row_storage import RowStorage
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.fp4 import E2M1
from pyc.compiler.fp8 import TYPES, group_of
from pyc.compiler.lookup import as_bytes
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.schemes import Float8, Int4Group, Int8Channel, LookupGroup, Quantized
from pyc.compiler.storage import StoredTensor
from pyc.compiler.weights import Packed
from pyc.runtime.artifact.dtypes import DtypeName
from pyc.runtime.host.rounding import ceil_div

ROWS = "rows"
CODES = "block-codes"
SCALES = "block-scales"
ZERO_POINTS = "block-zero-points"
FLOAT8_CODES = "float8-codes"
FLOAT8_SCALES = "float8-scales"
"""The build cache keeps bytes by these names: what changes them changes the name."""

ROW_BLOCK = 32
"""Inputs that share a scale where a whole row has one."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a quantized matrix is divided: `bits` a code, `block` inputs a scale, `count` blocks a row."""

    bits: int
    block: int
    count: int

    @property
    def code_bytes(self) -> int:
        """Bytes of a block's codes."""
        return self.block * self.bits // 8


def blocks_of(scheme: Quantized, columns: int) -> Blocks:
    """Return how a matrix of `columns` inputs is divided."""
    assert not isinstance(scheme, Float8), "floating point lies in rows"
    block = ROW_BLOCK if isinstance(scheme, Int8Channel) else scheme.group_size
    return Blocks(4 if isinstance(scheme, Int4Group) else 8, block, ceil_div(columns, block))


def stored_tensor(expression: Packed) -> StoredTensor:
    """Return how a matrix, or a part of a quantized one, is stored."""
    scheme = stored_scheme(expression.base)
    rows, columns = expression.shape
    dtype: DtypeName
    shape: tuple[int, ...]
    if expression.layout == ROWS:
        assert not isinstance(scheme, Quantized)
        dtype, shape = scheme.dtype or "f32", (rows, columns)  # type: ignore[assignment]
        return StoredTensor(dtype, shape, rows, columns, scheme)
    assert isinstance(scheme, Quantized)
    if isinstance(scheme, Float8):
        if expression.layout == FLOAT8_CODES:
            return StoredTensor("u8", (rows, columns), rows, columns, scheme)
        assert expression.layout == FLOAT8_SCALES, expression.layout
        return StoredTensor("f32", (rows, ceil_div(columns, group_of(scheme, columns))), rows, columns, scheme)
    blocks = blocks_of(scheme, columns)
    match expression.layout:
        case "block-codes":
            dtype, shape = "u8", (rows, blocks.count, blocks.code_bytes)
        case "block-scales":
            dtype, shape = "f32", (rows, blocks.count)
        case "block-zero-points":
            dtype, shape = "u8", (rows, ceil_div(blocks.count, 2))
        case layout:
            raise AssertionError(f"the layout {layout!r} is another backend's")
    return StoredTensor(dtype, shape, rows, columns, scheme)


def laid_out(stored: QuantizedRows, scheme: Quantized, layout: str) -> NDArray[np.generic]:
    """Return rows of codes as `layout` has them; the first dimension is that of `stored`."""
    if isinstance(scheme, Float8):
        return stored.codes if layout == FLOAT8_CODES else stored.scale
    blocks = blocks_of(scheme, stored.codes.shape[1])
    match layout:
        case "block-codes":
            codes = as_bytes(stored.codes, scheme) if isinstance(scheme, LookupGroup) else stored.codes
            return _codes(codes, blocks)
        case "block-scales":
            scale = stored.group_scales
            return np.repeat(scale, blocks.count, axis=1) if isinstance(scheme, Int8Channel) else scale
        case _:
            assert layout == ZERO_POINTS and stored.zero is not None, layout
            even = np.pad(stored.zero, ((0, 0), (0, blocks.count % 2)), constant_values=0)
            return _nibbles(even)


def _codes(codes: NDArray[np.uint8], blocks: Blocks) -> NDArray[np.uint8]:
    zero = 1 << blocks.bits - 1
    padding = blocks.count * blocks.block - codes.shape[1]
    padded = np.pad(codes, ((0, 0), (0, padding)), constant_values=zero) if padding else codes
    stored = _nibbles(padded) if blocks.bits == 4 else padded
    return stored.reshape(len(codes), blocks.count, blocks.code_bytes)


def _nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return codes of four bits, two a byte, the first of them in the lower half."""
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


_FLOAT4 = np.full(256, 255, np.uint8)
_FLOAT4[(E2M1.values[:16] + 128).astype(np.uint8)[::-1]] = np.arange(16, dtype=np.uint8)[::-1]
"""The code of e2m1 of each code of eight bits, which is its number twice, plus 128; 255: none. Zero is 0, not -0."""


def is_float4(codes: NDArray[np.generic]) -> bool:
    """Whether codes of eight bits u8 [N, blocks, block] are all twice a number of e2m1, so that nothing is lost."""
    if codes.ndim != 3 or codes.shape[2] % 2:
        return False
    parts = np.array_split(codes, len(codes) // 256 + 1)
    return all(bool((_FLOAT4[rows.astype(np.uint8)] < 16).all()) for rows in parts)


def float4_codes(codes: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return codes that `is_float4`, two in a byte, the first in the lower half."""
    return _nibbles(_FLOAT4[codes.astype(np.uint8)].reshape(len(codes), -1))


def unpacked_rows(
    codes: NDArray[np.generic],
    scales: NDArray[np.generic],
    zero_points: NDArray[np.generic] | None,
    bits: int,
    block: int,
) -> NDArray[np.float32]:
    """Return the values f32 [rows, blocks * block] of rows of parts, padding included."""
    rows, blocks, _ = codes.shape
    values = _halves(codes, blocks * block) if bits == 4 else codes.reshape(rows, -1)
    found: NDArray[np.float32] = values.reshape(rows, blocks, block).astype(np.float32)
    found -= 1 << bits - 1 if zero_points is None else _halves(zero_points, blocks)[..., None]
    found *= scales[..., None].astype(np.float32)
    return found.reshape(rows, -1)


def _halves(packed: NDArray[np.generic], width: int) -> NDArray[np.uint8]:
    """Return rows of `width` codes of four bits, of which a byte has two."""
    flat = packed.reshape(len(packed), -1).astype(np.uint8, copy=False)
    both = np.stack([flat & np.uint8(15), flat >> np.uint8(4)], axis=2)
    found: NDArray[np.uint8] = both.reshape(len(packed), -1)[:, :width]
    return found


def float8_values(
    codes: NDArray[np.generic], scales: NDArray[np.generic], float_format: str, block: int
) -> NDArray[np.float32]:
    """Return the values f32 [rows, K] of rows of 8-bit floating point; `block` inputs have a scale, 0: all of a row."""
    values: NDArray[np.float32] = TYPES["e4m3" if float_format == "e4m3" else "e5m2"].values[codes.astype(np.uint8)]
    by_column = scales.astype(np.float32, copy=False)
    values *= np.repeat(by_column, block, axis=1)[:, : codes.shape[1]] if block else by_column
    return values


STORAGE = RowStorage(stored_tensor, laid_out)
"""The bytes of weights for ONNX."""
