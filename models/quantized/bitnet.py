"""BitNet checkpoints: matrices of -1, 0 and 1 by one scale each.

`weight` u8 [N / 4, K], four rows a byte, and `weight_scale` [1], which divides, or for `linear_class` autobitlinear
multiplies. In `quantization_mode` online the weights are numbers, which transformers rounds whenever it multiplies;
that of all linear layers but the output head and `modules_to_not_convert`. What BitNet does with activations, int8 by
one scale a token, is not used: they are rounded as the recipe has it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from pyc.compiler.codes import TernaryCodes
from pyc.models.quantized.parts import SCALES, Parts, settings
from pyc.runtime.errors import IngestError

_ROWS = 4
"""Rows of a matrix that a byte has a code of."""

_NOT_CONVERTED = ("lm_head", "embed_tokens")


class BitnetSettings(Struct, frozen=True):
    """quantization_config of bitnet."""

    linear_class: Literal["bitlinear", "autobitlinear"] = "bitlinear"
    quantization_mode: Literal["offline", "online"] = "offline"
    modules_to_not_convert: tuple[str, ...] | None = None
    use_rms_norm: bool = False


def read_bitnet(raw: object, parts: Parts) -> None:
    """Take every module that is ternary. Raises IngestError for what does not fit together."""
    given = settings(raw, BitnetSettings, parts.label)
    if given.use_rms_norm:
        raise IngestError(
            f"{parts.label}: config.json: quantization_config.use_rms_norm is true, which puts a norm before each "
            "linear layer and is not read; expected false"
        )
    is_auto = given.linear_class == "autobitlinear"
    if is_auto and given.quantization_mode == "online":
        _read_online(given, parts)
        return
    for module in parts.modules("weight_scale"):
        scale = parts.take(f"{module}.weight_scale", SCALES)
        if scale.shape not in ((), (1,)):
            raise parts.wrong(scale, f"has shape {list(scale.shape)}, expected one scale")
        codes = parts.take(f"{module}.weight", ("u8",))
        if len(codes.shape) != 2:
            raise parts.wrong(codes, f"has shape {list(codes.shape)}, expected two dimensions")
        shape = (_ROWS * codes.shape[0], codes.shape[1])
        parts.add(f"{module}.weight", TernaryCodes(codes, scale, not is_auto, shape))


def _read_online(given: BitnetSettings, parts: Parts) -> None:
    kept = given.modules_to_not_convert or ()
    for module in parts.modules("weight"):
        names = module.split(".")
        source = parts.left[f"{module}.weight"]
        is_kept = any(name == module or name in names or module.startswith(f"{name}.") for name in kept)
        if len(source.shape) == 2 and names[-1] not in _NOT_CONVERTED and not is_kept:
            weights = parts.take(f"{module}.weight", SCALES)
            rows, columns = weights.shape
            parts.add(f"{module}.weight", TernaryCodes(weights, None, False, (rows, columns)))
