"""Checkpoints of compressed-tensors (llm-compressor): integers packed or as bytes, and fp8.

- pack-quantized: weight_packed i32 [N, ceil(K bits / 32)], weight_scale [N, groups], weight_shape, and where they are
  there weight_zero_point i32 [ceil(N bits / 32), groups] and weight_g_idx [K];
- int-quantized, naive-quantized: weight i8 [N, K], weight_scale [N, groups], weight_zero_point where it is there;
- nvfp4-pack-quantized, mxfp4-pack-quantized: weight_packed u8 [N, K / 2], weight_scale [N, groups], f8_e4m3 beside
  weight_global_scale f32 [1], which divides, or u8 (e8m0);
- float-quantized, naive-quantized: weight f8 [N, K], weight_scale: of the tensor, of rows, or of blocks.

What it says of activations is not used: they are rounded as the recipe has it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from pyc.compiler.codes import Float4Codes, IntegerCodes
from pyc.compiler.sources import Source
from pyc.models.messages import quoted
from pyc.models.quantized.fp8 import float8
from pyc.models.quantized.parts import SCALES, Parts, Size, divided
from pyc.runtime.errors import IngestError
from pyc.runtime.host.rounding import ceil_div

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
_INTEGERS = ("i8", "i32", "i64")
_BYTES = ("i8", "f8_e4m3", "f8_e5m2")
_FUSED_LOCATIONS = ("weight_input", "weight_output")
"""Where a transform is in the weights already."""


class _Weights(Struct, frozen=True):
    num_bits: int
    type: str = "int"
    symmetric: bool = True
    strategy: Literal["tensor", "channel", "group", "tensor_group", "block"] | None = None
    group_size: Size | None = None
    block_structure: tuple[Size, Size] | Annotated[str, Meta(pattern="^[0-9]{1,9}x[0-9]{1,9}$")] | None = None
    actorder: str | bool | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether groups are of inputs by their activations, and not of neighbours."""
        return self.actorder in (True, "group", "dynamic")

    @property
    def block(self) -> tuple[int, int] | None:
        """Rows and columns of a block, which older files have as "128x128"."""
        if not isinstance(self.block_structure, str):
            return self.block_structure
        rows, columns = map(int, self.block_structure.split("x"))
        return rows, columns

    def scales_shape(self, outputs: int, inputs: int) -> tuple[int, ...] | None:
        """Return the shape of a matrix's scales, without what is 1 at its end; None where nothing is said of it."""
        shape: tuple[int, ...]
        match self.strategy:
            case "tensor":
                shape = ()
            case "channel":
                shape = (outputs,)
            case "block" if self.block is not None and min(self.block) > 0:
                rows, columns = self.block
                shape = (ceil_div(outputs, rows), ceil_div(inputs, columns))
            case None if self.group_size is None:
                return None
            case _:
                size = self.group_size or 0
                if size > 0 and inputs % size:
                    return _NO_SHAPE
                shape = (outputs, inputs // size if size > 0 else 1)
        return _short(shape)

    def scales_stated(self, outputs: int, inputs: int) -> str:
        """Return that shape for a message."""
        shape = self.scales_shape(outputs, inputs)
        if shape == _NO_SHAPE:
            return f"groups of {self.group_size}, of which a row has no whole number"
        return str(list(shape or (1,)))


_NO_SHAPE = (-1,)
"""Of no tensor."""


def _short(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


class _Group(Struct, frozen=True):
    weights: _Weights | None = None
    format: str | None = None


class _Place(Struct, frozen=True):
    location: str


class _Transform(Struct, frozen=True):
    apply: tuple[_Place, ...] = ()


class _Transforms(Struct, frozen=True):
    config_groups: dict[str, _Transform] = {}


class CompressedSettings(Struct, frozen=True):
    """quantization_config of compressed-tensors."""

    config_groups: dict[str, _Group]
    format: str | None = None
    quantization_status: str = "compressed"
    sparsity_config: dict[str, object] | None = None
    transform_config: _Transforms | None = None


def read_compressed(raw: object, parts: Parts) -> None:
    """Take every module that is compressed. Raises IngestError for what does not fit together."""
    given = parts.settings(raw, CompressedSettings)
    parts.require(given.quantization_status, ("compressed", "frozen"), "quantization_status")
    if given.sparsity_config and given.sparsity_config.get("format") not in (None, "dense"):
        where = f"{parts.label}: {parts.place}sparsity_config"
        raise IngestError(f"{where}: sparse weights are not read; give a dense checkpoint")
    _require_fused(given.transform_config or _Transforms(), parts)
    formats = {group.format or given.format for group in given.config_groups.values() if group.weights is not None}
    for form in formats:
        parts.require(form, FORMATS, "format")
    weights = [group.weights for group in given.config_groups.values() if group.weights is not None]
    for module in parts.modules("weight_packed"):
        _read_packed(module, weights, parts)
    is_packed = all(form is not None and form.endswith("pack-quantized") for form in formats)
    for module in parts.modules("weight_scale"):
        if is_packed and f"{module}.weight" not in parts.left:
            raise parts.missing(f"{module}.weight_packed")
        _read_bytes(module, weights, parts)
    parts.require_scales("weight_scale", _BYTES)
    parts.drop_activations()


def _require_fused(transforms: _Transforms, parts: Parts) -> None:
    """Raise IngestError for a transform that a run has to apply to activations."""
    for name, transform in transforms.config_groups.items():
        for place in transform.apply:
            if place.location not in _FUSED_LOCATIONS:
                raise IngestError(
                    f"{parts.label}: {parts.place}transform_config.config_groups[{quoted(name)}] "
                    f"is applied at {quoted(place.location)} while the model runs, which is not done here; expected "
                    f"{' or '.join(_FUSED_LOCATIONS)}: give a checkpoint without such transforms"
                )


def _that_fit(weights: list[_Weights], scales: Source, shape: tuple[int, int], parts: Parts) -> list[_Weights]:
    """Return those of `weights` whose scales for a matrix of `shape` are as `scales` is. Raises IngestError where
    there is none: which modules a group is for is not read, so that each module is of any group that it fits."""
    found = [each for each in weights if each.scales_shape(*shape) in (None, _short(scales.shape))]
    if not found and weights:
        shown = " or ".join(dict.fromkeys(each.scales_stated(*shape) for each in weights))
        raise parts.wrong(
            scales,
            f"has shape {list(scales.shape)}, and for {list(shape)} values strategy, group_size and block_structure in "
            f"config.json say {shown}; the checkpoint is damaged, or its config.json is of another: download it again",
        )
    return found


def _zero_points(
    module: str, weights: list[_Weights], scales: Source, dtype: str, shape: tuple[int, ...], parts: Parts
) -> Source | None:
    """Return the zero points of a module, which has to have some where config.json says `symmetric: false`. Zeros of a
    symmetric one, which older files have beside its scales, are none; others, which compressed-tensors passes over
    there, are an error, since it is not known which of the two is wrong."""
    name = f"{module}.weight_zero_point"
    if all(each.symmetric for each in weights) and _are_zeros(parts.left.get(name), scales.shape, parts):
        parts.drop(name)
        return None
    needed = bool(weights) and not any(each.symmetric for each in weights)
    take = parts.take if needed else parts.take_if_there
    found = take(name, (dtype,), shape)
    is_denied = bool(weights) and all(each.symmetric for each in weights)
    if found is None or not is_denied:
        return found
    if dtype == "i8" or not _are_middles(found, weights[0].num_bits, scales.shape[0], parts):
        raise parts.wrong(found, "has zero points, and config.json says `symmetric: true`; one of them is wrong")
    return found


def _are_middles(source: Source, bits: int, outputs: int, parts: Parts) -> bool:
    """Whether packed zero points are all the middle of the codes, which is what symmetric ones have."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    rows, groups = source.shape
    words = parts.values(source).view(np.uint32).reshape(rows, 1, groups)
    unpacked = words >> shifts[None, :, None] & np.uint32((1 << bits) - 1)
    return bool((unpacked.reshape(-1, groups)[:outputs] == 1 << bits - 1).all())


def _are_zeros(source: Source | None, shape: tuple[int, ...], parts: Parts) -> bool:
    """Whether a tensor is there, of integers of `shape` that are all zero."""
    if source is None or source.shape != shape or source.dtype not in _INTEGERS:
        return False
    return not parts.values(source).any()


def _read_packed(module: str, weights: list[_Weights], parts: Parts) -> None:
    codes = parts.take(f"{module}.weight_packed", ("i32", "u8"))
    if codes.dtype == "u8":
        _read_float4(module, codes, weights, parts)
        return
    stated = parts.take(f"{module}.weight_shape", _INTEGERS[1:], (2,))
    scales = parts.take(f"{module}.weight_scale", SCALES)
    outputs, inputs = (int(size) for size in parts.values(stated))
    if len(codes.shape) != 2 or len(scales.shape) != 2 or outputs < 1 or inputs < 1:
        what = f"has shape {list(codes.shape)}, its scales {list(scales.shape)}; expected matrices"
        raise parts.wrong(codes, what)
    bits = next((w.num_bits for w in weights if codes.shape == (outputs, ceil_div(inputs * w.num_bits, 32))), 0)
    if bits not in (4, 8):
        known = " or ".join(str(w.num_bits) for w in weights)
        what = f"has shape {list(codes.shape)}, which {known} bits of {[outputs, inputs]} do not make; expected 4 or 8"
        raise parts.wrong(codes, what)
    if scales.shape[0] != outputs:
        raise parts.wrong(scales, f"has shape {list(scales.shape)}, expected {outputs} rows")
    groups = scales.shape[1]
    group = divided(parts, scales, inputs, groups)
    fitting = _that_fit([w for w in weights if w.num_bits == bits], scales, (outputs, inputs), parts)
    zeros = _zero_points(module, fitting, scales, "i32", (ceil_div(outputs * bits, 32), groups), parts)
    ordered = all(w.is_ordered for w in fitting)
    order = parts.order(f"{module}.weight_g_idx", inputs, group, groups, ordered)
    zero = 0 if zeros is not None else 1 << bits - 1
    made = IntegerCodes(codes, scales, zeros, order, "compressed", bits, group, zero, (outputs, inputs))
    parts.add(f"{module}.weight", made)


def _read_float4(module: str, codes: Source, weights: list[_Weights], parts: Parts) -> None:
    scales = parts.take(f"{module}.weight_scale", ("f8_e4m3", "u8"))
    if len(codes.shape) != 2 or len(scales.shape) != 2 or codes.shape[0] != scales.shape[0]:
        what = f"has shape {list(scales.shape)}, the codes {list(codes.shape)}; expected matrices of as many rows"
        raise parts.wrong(scales, what)
    shape = (codes.shape[0], 2 * codes.shape[1])
    groups = divided(parts, scales, shape[1], 32 if scales.dtype == "u8" else 16)
    if scales.shape[1] != groups:
        raise parts.wrong(scales, f"has shape {list(scales.shape)}, expected {[shape[0], groups]}")
    _that_fit([w for w in weights if w.num_bits == 4], scales, shape, parts)
    factor = None
    if scales.dtype != "u8":
        factor = parts.take(f"{module}.weight_global_scale", ("f32",), (1,))
    parts.add(f"{module}.weight", Float4Codes(codes, scales, factor, True, shape))


def _read_bytes(module: str, weights: list[_Weights], parts: Parts) -> None:
    codes = parts.take(f"{module}.weight", _BYTES)
    scales = parts.take(f"{module}.weight_scale", SCALES)
    if len(codes.shape) != 2:
        raise parts.wrong(codes, f"has shape {list(codes.shape)}, expected two dimensions")
    outputs, inputs = codes.shape
    if codes.dtype != "i8":
        fitting = _that_fit(weights, scales, (outputs, inputs), parts)
        blocks = [w.block for w in fitting if w.strategy in ("block", None) and len(scales.shape) == 2]
        parts.drop(f"{module}.weight_zero_point")
        parts.add(f"{module}.weight", float8(codes, scales, blocks[0] if blocks else None, parts))
        return
    if scales.shape in ((), (1,)):
        raise parts.wrong(scales, "is one scale for a whole matrix of integers; expected one for each row")
    rows = scales.shape[0]
    groups = scales.shape[1] if len(scales.shape) == 2 else 1
    if rows != outputs or len(scales.shape) > 2:
        raise parts.wrong(scales, f"has shape {list(scales.shape)}, expected {outputs} rows")
    group = divided(parts, scales, inputs, groups)
    fitting = _that_fit(weights, scales, (outputs, inputs), parts)
    zeros = _zero_points(module, fitting, scales, "i8", scales.shape, parts)
    ordered = bool(fitting) and all(w.is_ordered for w in fitting)
    order = parts.order(f"{module}.weight_g_idx", inputs, group, groups, ordered)
    zero = 0 if zeros is not None else 128
    parts.add(
        f"{module}.weight", IntegerCodes(codes, scales, zeros, order, "bytes", 8, group, zero, (outputs, inputs))
    )
