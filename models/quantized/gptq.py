"""GPTQ and AWQ checkpoints: 4 and 8 bits in words of 32, scales f16 and zero points a group.

GPTQ (AutoGPTQ, GPTQModel): qweight i32 [K bits / 32, N], qzeros [groups, N bits / 32] (less one, but in gptq_v2),
scales [groups, N], g_idx [K]. AWQ ("gemm"): qweight [K, N / 8], qzeros [groups, N / 8], both in an order of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType

from pyc.compiler.codes import IntegerCodes
from pyc.models.messages import quoted
from pyc.models.quantized.parts import SCALES, Parts, divided
from pyc.runtime.errors import IngestError

WORD_BITS = 32
T = TypeVar("T")


class GptqSettings(Struct, frozen=True):
    """quantization_config of GPTQ."""

    bits: int
    group_size: int = 128
    desc_act: bool = False
    checkpoint_format: str | None = None
    format: str | None = None
    dynamic: dict[str, object] | None = None


class AwqSettings(Struct, frozen=True):
    """quantization_config of AWQ. `w_bit` and `q_group_size` are AutoAWQ's names."""

    bits: int | UnsetType = UNSET
    w_bit: int | UnsetType = UNSET
    group_size: int | UnsetType = UNSET
    q_group_size: int | UnsetType = UNSET
    version: str | None = None
    format: str | None = None
    checkpoint_format: str | None = None
    zero_point: bool = True


def read_gptq(raw: object, parts: Parts) -> None:
    """Take every GPTQ module. Raises IngestError for what does not fit together."""
    given = parts.settings(raw, GptqSettings)
    parts.require(given.bits, (4, 8), "bits")
    form = _same({"format": given.format, "checkpoint_format": given.checkpoint_format}, parts) or "gptq"
    parts.require(form, ("gptq", "gptq_v2"), "format" if given.format else "checkpoint_format")
    for pattern in given.dynamic or {}:
        if not pattern.startswith("-:"):
            raise IngestError(
                f"{parts.label}: {parts.place}dynamic[{pattern!r}] gives modules settings of their "
                "own, which are not read; expected one for all"
            )
    for module in parts.modules("qweight"):
        _read(module, given.bits, given.group_size, "gptq", form == "gptq", given.desc_act, parts)
    parts.require_beside("qweight", "scales", "qzeros")


def _same(names: Mapping[str, T | UnsetType | None], parts: Parts) -> T | None:
    """Return what a setting under two names says; raises IngestError where they disagree."""
    given = [(name, value) for name, value in names.items() if value is not None and not isinstance(value, UnsetType)]
    for name, value in given[1:]:
        if value != given[0][1]:
            raise IngestError(
                f"{parts.label}: {parts.place}{given[0][0]} is {quoted(str(given[0][1]))}, but {name} is "
                f"{quoted(str(value))}; expected the same of both"
            )
    return given[0][1] if given else None


def read_awq(raw: object, parts: Parts) -> None:
    """Take every AWQ module. Raises IngestError for what does not fit together."""
    given = parts.settings(raw, AwqSettings)
    bits = _same({"bits": given.bits, "w_bit": given.w_bit}, parts)
    group_size = _same({"group_size": given.group_size, "q_group_size": given.q_group_size}, parts)
    parts.require(4 if bits is None else bits, (4,), "bits" if given.w_bit is UNSET else "w_bit")
    for name in ("version", "format", "checkpoint_format"):
        form = getattr(given, name)
        parts.require((form or "gemm").lower(), ("gemm",), name)
    parts.require(given.zero_point, (True,), "zero_point")
    for module in parts.modules("qweight"):
        _read(module, 4, 128 if group_size is None else group_size, "awq", False, False, parts)
    parts.require_beside("qweight", "scales", "qzeros")


def _read(
    module: str, bits: int, group_size: int, form: Literal["gptq", "awq"], less_one: bool, ordered: bool, parts: Parts
) -> None:
    per_word = WORD_BITS // bits
    codes = parts.take(f"{module}.qweight", ("i32",))
    if len(codes.shape) != 2:
        raise parts.wrong(codes, f"has shape {list(codes.shape)}, expected two dimensions")
    inputs, outputs = codes.shape
    inputs, outputs = (inputs * per_word, outputs) if form == "gptq" else (inputs, outputs * per_word)
    group = inputs if group_size == -1 else group_size
    groups = divided(parts, codes, inputs, group)
    words = divided(parts, codes, outputs, per_word)
    scales = parts.take(f"{module}.scales", SCALES, (groups, outputs))
    zeros = parts.take(f"{module}.qzeros", ("i32",), (groups, words))
    order = parts.order(f"{module}.g_idx", inputs, group, groups, ordered)
    made = IntegerCodes(codes, scales, zeros, order, form, bits, group, int(less_one), (outputs, inputs))
    parts.add(f"{module}.weight", made)
