"""Weights as torch holds them: floats in their own dtype, or codes and scales that stand for floats.

What is short stays short: it is widened to f32 where it is used, so that an exported program is as small as its scheme.
A weight is scale * (code - zero), in f32, as `compiler.quantization.dequantize_rows` computes it, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pyc.compiler.evaluate import evaluate_stored, stored_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.fp8 import BLOCK_SIDE, TYPES
from pyc.compiler.lookup import as_bytes
from pyc.compiler.operands import sources
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.schemes import Dense, Float8, Int4Group, Int8Channel, LookupGroup, Quantized
from pyc.compiler.storage import PIECE_WEIGHTS, columns_of
from pyc.compiler.weights import Expression
from pyc.runtime.errors import QuantizeError
from pyc.runtime.host.rounding import ceil_div

Bytes = NDArray[np.uint8]


class Weight(Protocol):
    """A weight that operators read."""

    def values(self) -> Tensor:
        """Return all of it, f32."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of a matrix that `ids` [...] number, f32 [..., K]."""
        ...


class DenseWeight(nn.Module):
    """A matrix or a vector of f32, f16 or bf16."""

    stored: Tensor

    def __init__(self, stored: Tensor | NDArray[np.generic]) -> None:
        """`stored` may be an array; one of uint16 is bf16."""
        super().__init__()
        self.register_buffer("stored", _tensor(stored) if isinstance(stored, np.ndarray) else stored)

    def values(self) -> Tensor:
        """All of it, f32."""
        return _widened(self.stored)

    def rows(self, ids: Tensor) -> Tensor:
        """Some rows, f32."""
        return _widened(functional.embedding(ids, self.stored))


class CodedWeight(nn.Module):
    """A matrix [N, K] as codes, u8: [N, K], or two of four bits a byte, [N, K / 2], the first the lower.

    `scales` and `zeros` are [N, groups], and the last group may be short; codes may go on to its end. Without `zeros`
    the code in the middle stands for zero.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self, codes: Bytes, scales: NDArray[np.generic], zeros: Bytes | None, *, bits: int, group: int, columns: int
    ) -> None:
        """`columns` are K, `group` of them have one scale, and a code has so many `bits`."""
        super().__init__()
        self.bits, self.group, self.columns = bits, group, columns
        self.register_buffer("codes", _tensor(codes))
        self.register_buffer("scales", _tensor(scales))
        self.register_buffer("zeros", None if zeros is None else _tensor(zeros))

    def values(self) -> Tensor:
        """All of it, f32."""
        return self._decoded(self.codes, self.scales, self.zeros)

    def rows(self, ids: Tensor) -> Tensor:
        """Some rows, f32: no others are decoded."""
        parts = (self.codes, self.scales, self.zeros)
        found = [None if part is None else functional.embedding(ids, part) for part in parts]
        codes, scales, zeros = found
        assert codes is not None and scales is not None
        return self._decoded(codes, scales, zeros)

    def _decoded(self, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
        values = codes.float()
        if self.bits == 4:
            high = torch.floor(values * (1 / 16))
            values = torch.stack((values - 16 * high, high), -1).flatten(-2)
        values = self._cut(values)
        zero = float(1 << self.bits - 1) if zeros is None else self._by_column(zeros.float())
        return (values - zero) * self._by_column(scales.float())

    def _by_column(self, values: Tensor) -> Tensor:
        """Return values [..., groups] as [..., K], or [..., 1] where a row is one group."""
        if values.shape[-1] == 1:
            return values
        spread = values.unsqueeze(-1).expand(*values.shape, self.group)
        return self._cut(spread.flatten(-2))

    def _cut(self, values: Tensor) -> Tensor:
        """Leave out what fills up the last group or byte."""
        return values if values.shape[-1] == self.columns else values[..., : self.columns]


class Float8Weight(nn.Module):
    """A matrix [N, K] as codes of 8-bit floating point, u8, and scales f32 [N, groups], the last of which may be short.

    A table says what codes stand for: engines that lack floating point of 8 bits look it up.
    """

    codes: Tensor
    scales: Tensor
    numbers: Tensor

    def __init__(self, codes: Bytes, scales: NDArray[np.generic], *, float_format: str, block: int) -> None:
        """`float_format` is "e4m3" or "e5m2"; `block` inputs have one scale, 0: all of a row."""
        super().__init__()
        self.block, self.columns = block, codes.shape[1]
        self.register_buffer("codes", _tensor(codes))
        self.register_buffer("scales", _tensor(scales))
        numbers = TYPES["e4m3" if float_format == "e4m3" else "e5m2"].values
        self.register_buffer("numbers", _tensor(np.nan_to_num(numbers, nan=0)))

    def values(self) -> Tensor:
        """All of it, f32."""
        return self._decoded(self.codes, self.scales)

    def rows(self, ids: Tensor) -> Tensor:
        """Some rows, f32: no others are decoded."""
        return self._decoded(functional.embedding(ids, self.codes), functional.embedding(ids, self.scales))

    def _decoded(self, codes: Tensor, scales: Tensor) -> Tensor:
        values = functional.embedding(codes.int(), self.numbers.unsqueeze(1)).squeeze(-1)
        if scales.shape[-1] == 1:
            return values * scales
        spread = scales.unsqueeze(-1).expand(*scales.shape, self.block).flatten(-2)
        return values * spread[..., : self.columns]


AnyWeight = DenseWeight | CodedWeight | Float8Weight


def load_weight(name: str, expression: Expression, files: SourceFiles) -> AnyWeight:
    """Return what a Stored expression, or a stack of them, stands for. Raises IngestError and QuantizeError."""
    scheme = stored_scheme(expression)
    try:
        pieces = _evaluated(expression, files)
        if isinstance(scheme, Dense):
            loaded: AnyWeight = DenseWeight(_dense(expression, pieces))
        elif isinstance(scheme, Float8):
            loaded = _float8(scheme, pieces)
        else:
            loaded = _coded(expression, scheme, pieces)
    except QuantizeError as error:
        raise QuantizeError(f"quantize: {name}: {error}") from error
    files.check(dict.fromkeys(source.path for source in sources(expression)))
    return loaded


Pieces = Iterator[tuple[slice, QuantizedRows | NDArray[np.generic]]]


def _evaluated(expression: Expression, files: SourceFiles) -> Pieces:
    """Yield the rows of an expression, some at a time, and which they are."""
    rows = expression.shape[0]
    step = max(1, PIECE_WEIGHTS // columns_of(expression))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield slice(start, stop), evaluate_stored(expression, start, stop, files)


def _dense(expression: Expression, pieces: Pieces) -> Tensor:
    result: Tensor | None = None
    for place, rows in pieces:
        assert isinstance(rows, np.ndarray)
        tensor = _tensor(rows)
        if result is None:
            result = torch.empty(expression.shape, dtype=tensor.dtype)
        result[place] = tensor
    assert result is not None
    return result


def _float8(scheme: Float8, pieces: Pieces) -> Float8Weight:
    found = [rows for _, rows in pieces if isinstance(rows, QuantizedRows)]
    return Float8Weight(
        np.concatenate([rows.codes for rows in found]),
        np.concatenate([rows.scale for rows in found]),
        float_format=scheme.format,
        block=BLOCK_SIDE if scheme.scaling == "block" else 0,
    )


def _coded(expression: Expression, scheme: Quantized, pieces: Pieces) -> CodedWeight:
    assert not isinstance(scheme, Float8)
    found: list[QuantizedRows] = []
    for _, rows in pieces:
        assert isinstance(rows, QuantizedRows)
        codes = as_bytes(rows.codes, scheme) if isinstance(scheme, LookupGroup) else rows.codes
        codes = _pairs(codes) if isinstance(scheme, Int4Group) else codes
        scale = rows.scale if rows.outer is None else rows.group_scales
        found.append(QuantizedRows(codes, scale, rows.zero))
    zeros = [rows.zero for rows in found if rows.zero is not None]
    columns = columns_of(expression)
    return CodedWeight(
        np.concatenate([rows.codes for rows in found]),
        np.concatenate([rows.scale for rows in found]),
        np.concatenate(zeros) if zeros else None,
        bits=4 if isinstance(scheme, Int4Group) else 8,
        group=columns if isinstance(scheme, Int8Channel) else scheme.group_size,
        columns=columns,
    )


def _pairs(codes: Bytes) -> Bytes:
    """Return codes of four bits [N, K] two in a byte, [N, K / 2] rounded up."""
    padded = np.zeros((len(codes), 2 * ceil_div(codes.shape[1], 2)), np.uint8)
    padded[:, : codes.shape[1]] = codes
    return padded[:, ::2] | padded[:, 1::2] << np.uint8(4)


def _tensor(rows: NDArray[np.generic]) -> Tensor:
    """Return an array as torch has it; uint16 are bf16."""
    if rows.dtype == np.uint16:
        return torch.from_numpy(np.ascontiguousarray(rows).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(rows))


def _widened(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float32 else values.float()
