"""GPTQ and AWQ checkpoints: 4 and 8 bits in words of 32, scales f16 and zero points a group.

GPTQ (AutoGPTQ, GPTQModel): qweight i32 [K bits / 32, N], qzeros [groups, N bits / 32] (less one, but in gptq_v2),
scales [groups, N], g_idx [K]. AWQ ("gemm"): qweight [K, N / 8], qzeros [groups, N / 8], both in an order of its own.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from pyc.compiler.codes import IntegerCodes
from pyc.models.messages import quoted
from pyc.models.quantized.parts import SCALES, Parts, divided
from pyc.runtime.errors import IngestError

WORD_BITS = 32


class GptqSettings(Struct, frozen=True):
    """quantization_config of GPTQ."""

    bits: int
    group_size: int = 128
    desc_act: bool = False
    checkpoint_format: str | None = None
    format: str | None = None
    dynamic: dict[str, object] | None = None


class AwqSettings(Struct, frozen=True):
    """quantization_config of AWQ."""

    bits: int = 4
    group_size: int = 128
    version: str | None = None
    format: str | None = None
    checkpoint_format: str | None = None
    zero_point: bool = True


def read_gptq(raw: object, parts: Parts) -> None:
    """Take every GPTQ module. Raises IngestError for what does not fit together."""
    given = parts.settings(raw, GptqSettings)
    parts.require(given.bits, (4, 8), "bits")
    form = _same(given.format, given.checkpoint_format, parts) or "gptq"
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


def _same(form: str | None, older: str | None, parts: Parts) -> str | None:
    """Return what `format` and `checkpoint_format`, its older name, say; raises IngestError where they disagree."""
    if form is not None and older is not None and form != older:
        raise IngestError(
            f"{parts.label}: {parts.place}format is {quoted(form)}, but checkpoint_format is "
            f"{quoted(older)}; expected the same of both"
        )
    return form if form is not None else older


def read_awq(raw: object, parts: Parts) -> None:
    """Take every AWQ module. Raises IngestError for what does not fit together."""
    given = parts.settings(raw, AwqSettings)
    parts.require(given.bits, (4,), "bits")
    for name in ("version", "format", "checkpoint_format"):
        form = getattr(given, name)
        parts.require((form or "gemm").lower(), ("gemm",), name)
    parts.require(given.zero_point, (True,), "zero_point")
    for module in parts.modules("qweight"):
        _read(module, given.bits, given.group_size, "awq", False, False, parts)
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
