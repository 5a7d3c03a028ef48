"""Checkpoints of bitsandbytes: nf4 and fp4 by a table, and LLM.int8.

4 bits: `weight` u8, two codes a byte; `weight.quant_map` f32 [16]; `weight.absmax`, f32 or codes u8 with
`nested_quant_map` and `nested_absmax`; `weight.quant_state.bitsandbytes__nf4` (or fp4), JSON. 8 bits: `weight` i8
[N, K] and `SCB` f32 [N], 127 times the scales.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pyc.compiler.codes import IntegerCodes, NestedScales, TableCodes
from pyc.models.messages import quoted
from pyc.models.quantized.parts import LARGEST_BLOCK, Parts
from pyc.runtime.host.rounding import ceil_div

_STATE = "weight.quant_state.bitsandbytes__"
_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_Size = Annotated[int, Meta(ge=1, le=LARGEST_BLOCK)]
_STORAGE = ("u8", "i8", "f16", "bf16", "f32")
"""What codes may be called in the file (`bnb_4bit_quant_storage`): bytes all the same."""

_BY_ROWS = 0
"""The one layout of LLM.int8 that is not for one kind of GPU."""


class BitsAndBytesSettings(Struct, frozen=True):
    """quantization_config of bitsandbytes: the kind of codes of four bits is that of each weight's own state, and this
    for messages alone."""

    bnb_4bit_quant_type: object = None


class _State(Struct, frozen=True):
    """What bitsandbytes says of a weight."""

    quant_type: str
    blocksize: _Size
    dtype: str
    shape: tuple[_Size, _Size]
    nested_blocksize: _Size | None = None
    nested_offset: float | None = None


def read_bitsandbytes(raw: object, parts: Parts) -> None:
    """Take every module that is quantized. Raises IngestError for what does not fit together."""
    for kind in ("nf4", "fp4"):
        for module in parts.modules(f"{_STATE}{kind}"):
            parts.add(f"{module}.weight", _four_bits(module, kind, parts))
    kind = "fp4" if parts.settings(raw, BitsAndBytesSettings).bnb_4bit_quant_type == "fp4" else "nf4"
    parts.require_beside(f"{_STATE}{kind}", "weight.absmax", "weight.quant_map")
    for module in parts.modules("SCB"):
        scales = parts.take(f"{module}.SCB", ("f32",))
        codes = parts.take(f"{module}.weight", ("i8",))
        if len(codes.shape) != 2 or scales.shape != codes.shape[:1]:
            what = f"has shape {list(scales.shape)}, the codes {list(codes.shape)}; expected one for each row"
            raise parts.wrong(scales, what)
        _require_rows(module, parts)
        made = IntegerCodes(codes, scales, None, None, "bytes", 8, codes.shape[1], 128, codes.shape, factor=1 / 127)
        parts.add(f"{module}.weight", made)
    parts.require_scales("SCB", ("i8",))


def _require_rows(module: str, parts: Parts) -> None:
    layout = parts.take_if_there(f"{module}.weight_format", ("u8", "i8", "i32", "i64"))
    if layout is not None and parts.values(layout).tolist() != [_BY_ROWS]:
        what = f"is {parts.values(layout).tolist()}, expected {_BY_ROWS}: other layouts are for GPUs; save it again"
        raise parts.wrong(layout, what)


def _four_bits(module: str, kind: str, parts: Parts) -> TableCodes:
    source = parts.take(f"{module}.{_STATE}{kind}", ("u8",))
    try:
        state = msgspec.json.decode(parts.values(source).tobytes(), type=_State)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise parts.wrong(source, f"is not what bitsandbytes writes: {error}") from error
    if state.dtype not in _DTYPES:
        raise parts.wrong(source, f"has dtype {quoted(state.dtype)}, expected one of {', '.join(_DTYPES)}")
    count = state.shape[0] * state.shape[1]
    codes = parts.take(f"{module}.weight", _STORAGE)
    codes = replace(codes, dtype="u8", shape=(codes.size_bytes,))
    if codes.size_bytes != ceil_div(count, 2):
        raise parts.wrong(codes, f"has {codes.size_bytes} bytes, expected {ceil_div(count, 2)} for {list(state.shape)}")
    table = parts.take(f"{module}.weight.quant_map", ("f32",), (16,))
    blocks = ceil_div(count, state.blocksize)
    scales = parts.take(f"{module}.weight.absmax", ("f32", "u8"), (blocks,))
    nested = None
    if scales.dtype == "u8":
        if state.nested_blocksize is None or state.nested_offset is None:
            raise parts.wrong(source, "has no nested_blocksize and nested_offset, which absmax of type u8 needs")
        outer = (ceil_div(blocks, state.nested_blocksize),)
        nested = NestedScales(
            parts.take(f"{module}.weight.nested_quant_map", ("f32",), (256,)),
            parts.take(f"{module}.weight.nested_absmax", ("f32",), outer),
            state.nested_blocksize,
            state.nested_offset,
        )
    return TableCodes(codes, table, scales, nested, state.blocksize, _DTYPES[state.dtype], state.shape)
