"""How weights and activations lie in memory: offsets as data. `packing` writes and reads the bytes.

A weight [N, K] is stored as u8 [ceil(N / 16), panel_bytes]: a panel holds 16 consecutive rows (rows past N are zero
weights, or at most 2^-18 in lookup tables). A vector lane is a row, and a lane holds 4 bytes of consecutive k, so the
same bytes suit AVX-512, AVX2, NEON and the tiles of AMX. Little-endian; `panel_bytes` is a multiple of 64. Sections of
a panel, in order:

- f32: data f32 [K, 16]
- f16, bf16: data [ceil(K / 2), 16, 2], zero where k = K
- int8: scales f32 [16]; data u8 [K32 / 4, 16, 4] = q + 128, K32 = K rounded up to 32, q = 0 where k >= K
- fp8: as int8, data u8 = the codes, 0 where k >= K; in blocks of 128 inputs: scales f32 [ceil(K / 128), 16]
- int8, group g: scales f16 [K32 / g, 16]; zero bytes up to a multiple of 64; data as int8
- int4, group g: scales u8 [K / g, 16]; row exponents f32 [16]; zero bytes up to a multiple of 64; data
  u8 [K / 32, 4, 16, 4]
- lookup tables of b bits, group g: scales u8 [K / g, 16]; row exponents f32 [16]; zero bytes up to a multiple of 64;
  data u8 [K / 32, b, 16, 4]
- mxfp4: scales u8 [K / 32, 16], bytes of e8m0; zero bytes up to a multiple of 64; data as lookup tables of 4 bits
- nvfp4: scales u8 [K / 16, 16], codes of e4m3; row factors f32 [16]; zero bytes up to a multiple of 64; data as mxfp4
- ternary: row factors f32 [16]; data as lookup tables of 2 bits, q + 1
- asymmetric int4, group g: scales f16 [K / g, 16]; zeros u8 [K / g, 16]; zero bytes up to a multiple of 64; data as
  int4

A scale of one byte is a sign, four bits e and three bits f: +-(1 + f / 8) 2^e times 2^(row exponent), which is stored
as an f32.

A byte (b, j, lane, i) of int4 data holds q[32 b + 4 j + i] in its low nibble and q[32 b + 16 + 4 j + i] in
its high nibble, so that one load gives two operands of a 4-byte dot product by a mask and a shift.

In such a byte of lookup tables, whose exponent takes three bits, bit 6 says whether the group's entries are shifted.
Codes q[32 b + 4 j + i] of a block, j in [0, 8) and i in [0, 4), lie in byte i of a lane's words, of which the block has
as many as a code has bits. Codes of 4 bits lie as in int4; of 2 bits from bit 2 (j / 2) of word j % 2 on; of 3 and 5
bits the lower two or four as those, and the highest in bit j of the last word.

Codes of mxfp4 and nvfp4 are those of e2m1 (`compiler.fp4`). The row factor is the scale of ternary, and half of the
matrix's f32 of nvfp4: kernels multiply integers, which are twice the numbers of e2m1.

A quantized activation row is scales f32 [G] | zero-point corrections i32 [G] | data i8 [K32], G = K32 / 32,
each section and the row itself padded with zeros to 64 bytes; see `ActivationLayout`. A row of bf16 has room
for f32, which libraries without matmuls of bf16 keep there, and for 64 bytes more (`quantized_row_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.row_formats import RowFormat
from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.fp8 import BLOCK_SIDE
from pyc.compiler.quantization import BLOCK, require_divisible
from pyc.compiler.scales import Bytes
from pyc.compiler.schemes import Dense, Float8, Int4Group, Int8Channel, Int8Group, LookupGroup, Scheme
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.host.rounding import ceil_div, round_up

PANEL16 = "panel16"
"""Name of the layout in `weights.Packed.layout`."""

ALIGNMENT = 64
"""Every section that a kernel loads whole vectors from, and every panel, starts at a multiple of this."""



@dataclass(frozen=True, slots=True)
class Section:
    """An array inside a panel or quantized row: byte offset from its start, dtype as in `runtime.artifact.dtypes`,
    shape."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the array, padding not counted."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def end(self) -> int:
        """Offset of the first byte behind the array."""
        return self.offset + self.size_bytes

    def view(self, rows: Bytes) -> NDArray[np.generic]:
        """Return the array of each of `rows` u8 [n, row_bytes] as a writable view [n, *shape]."""
        array: NDArray[np.generic] = rows[:, self.offset : self.end].view(DTYPES[self.dtype].numpy)
        strides = (rows.strides[0], *np.empty(self.shape, array.dtype).strides)
        return np.lib.stride_tricks.as_strided(array, (rows.shape[0], *self.shape), strides)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of one panel of 16 rows of `inputs` weights lie, for one scheme."""

    scheme: Scheme
    inputs: int
    scales: Section | None
    zeros: Section | None
    row_exponents: Section | None
    data: Section
    panel_bytes: int
    row_factors: Section | None = None

    def panels(self, rows: int) -> int:
        """Return the number of panels that `rows` rows take."""
        return ceil_div(rows, LANES)

    def size_bytes(self, rows: int) -> int:
        """Return the bytes that a weight of `rows` rows takes."""
        return self.panels(rows) * self.panel_bytes


@dataclass(frozen=True, slots=True)
class ActivationLayout:
    """Where the parts of one row of int8 activations lie; `row_bytes` is the stride between rows.

    Of many rows, libraries may put the parts elsewhere in the same bytes
    (templates/cpu/include/pyc_interleaved_rows.h).
    """

    inputs: int
    scales: Section
    corrections: Section
    data: Section
    row_bytes: int


@cache
def panel_layout(scheme: Scheme, inputs: int) -> Layout:
    """Return the layout of a weight [any, inputs] under `scheme`; `Dense.dtype` must be set.

    Raises QuantizeError when the groups of the scheme do not divide `inputs`.
    """
    require_divisible(scheme, inputs)
    scales = zeros = row_exponents = row_factors = None
    match scheme:
        case Dense("f32"):
            data = Section(0, "f32", (inputs, LANES))
        case Dense("f16" | "bf16" as dtype):
            data = Section(0, dtype, (ceil_div(inputs, 2), LANES, 2))
        case Float8(scaling="block"):
            scales = Section(0, "f32", (ceil_div(inputs, BLOCK_SIDE), LANES))
            data = Section(scales.end, "u8", (round_up(inputs, BLOCK) // 4, LANES, 4))
        case Int8Channel() | Float8():
            scales = Section(0, "f32", (LANES,))
            data = Section(scales.end, "u8", (round_up(inputs, BLOCK) // 4, LANES, 4))
        case Int8Group(group_size):
            padded = round_up(inputs, BLOCK)
            scales = Section(0, "f16", (padded // group_size, LANES))
            data = Section(round_up(scales.end, ALIGNMENT), "u8", (padded // 4, LANES, 4))
        case Int4Group(group_size, symmetric=True):
            scales = Section(0, "u8", (inputs // group_size, LANES))
            row_exponents = Section(scales.end, "f32", (LANES,))
            data = Section(round_up(row_exponents.end, ALIGNMENT), "u8", (inputs // BLOCK, 4, LANES, 4))
        case LookupGroup(codebook, scales="row"):
            row_factors = Section(0, "f32", (LANES,))
            data = Section(row_factors.end, "u8", (inputs // BLOCK, CODEBOOKS[codebook].bits, LANES, 4))
        case LookupGroup(codebook, group_size, "e8m0" | "e4m3"):
            scales = Section(0, "u8", (inputs // group_size, LANES))
            row_factors = Section(scales.end, "f32", (LANES,)) if scheme.has_row_factors else None
            header = row_factors.end if row_factors else scales.end
            bits = CODEBOOKS[codebook].bits
            data = Section(round_up(header, ALIGNMENT), "u8", (inputs // BLOCK, bits, LANES, 4))
        case LookupGroup(codebook, group_size):
            scales = Section(0, "u8", (inputs // group_size, LANES))
            row_exponents = Section(scales.end, "f32", (LANES,))
            bits = CODEBOOKS[codebook].bits
            data = Section(round_up(row_exponents.end, ALIGNMENT), "u8", (inputs // BLOCK, bits, LANES, 4))
        case Int4Group(group_size):
            scales = Section(0, "f16", (inputs // group_size, LANES))
            zeros = Section(scales.end, "u8", (inputs // group_size, LANES))
            data = Section(round_up(zeros.end, ALIGNMENT), "u8", (inputs // BLOCK, 4, LANES, 4))
        case Dense(other):
            raise ValueError(f"a layout needs the dtype of a dense weight, f32, f16 or bf16; got {other}")
    return Layout(scheme, inputs, scales, zeros, row_exponents, data, round_up(data.end, ALIGNMENT), row_factors)


@cache
def activation_layout(inputs: int) -> ActivationLayout:
    """Return the layout of quantized activation rows [any, inputs]."""
    groups = ceil_div(inputs, BLOCK)
    scales = Section(0, "f32", (groups,))
    corrections = Section(round_up(scales.end, ALIGNMENT), "i32", (groups,))
    data = Section(round_up(corrections.end, ALIGNMENT), "i8", (groups * BLOCK,))
    return ActivationLayout(inputs, scales, corrections, data, round_up(data.end, ALIGNMENT))


def quantized_row_bytes(inputs: int, row_format: RowFormat) -> int:
    """Return the room of a quantized row of `inputs`: of many rows, libraries may use it in other ways.

    Rows of bf16 are f32 in some libraries, and 64 bytes further apart than they need be: with 4096 between them, as
    1024 inputs would have, the rows of a register block share the sets of the first-level cache. Libraries that
    multiply tiles keep bf16 in the place of int8 (templates/cpu/include/pyc_amx_rows.h).
    """
    if row_format == "bf16":
        return round_up(4 * inputs, ALIGNMENT) + ALIGNMENT
    return max(activation_layout(inputs).row_bytes, 2 * round_up(inputs, BLOCK))


PIECES = 3
"""Numbers of bf16 that have the 24 bits of an f32."""


def split_bytes(inputs: int) -> int:
    """Return the room that a row [inputs] of f32 takes when it is split into PIECES numbers of bf16 each."""
    return PIECES * 2 * round_up(inputs, BLOCK)
