"""BitNet checkpoints: matrices of -1, 0 and 1 by one scale each.

`weight` u8 [N / 4, K], four rows a byte, and `weight_scale` [1], which divides, or for `linear_class` autobitlinear
multiplies. Of autobitlinear in `quantization_mode` online the weights are numbers, which transformers rounds whenever
it multiplies; bitlinear has packed weights in either mode, and numbers are refused, as transformers refuses them. That
is so of all linear layers but those that `modules_to_not_convert` keeps, by regular expressions and ends of names, or
without such a list the output head. What BitNet does with activations, int8 by one scale a token, is not used: they
are rounded as the recipe has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from pyc.compiler.codes import TernaryCodes
from pyc.compiler.name_patterns import PatternError, name_pattern
from pyc.models.messages import quoted
from pyc.models.quantized.parts import SCALES, Parts
from pyc.runtime.errors import IngestError

_ROWS = 4
"""Rows of a matrix that a byte has a code of."""

_HEAD = "lm_head"
_EMBEDDING = "embed_tokens"


class BitnetSettings(Struct, frozen=True):
    """quantization_config of bitnet."""

    linear_class: Literal["bitlinear", "autobitlinear"] = "bitlinear"
    quantization_mode: Literal["offline", "online"] = "offline"
    modules_to_not_convert: tuple[str, ...] | None = None
    use_rms_norm: bool = False


def read_bitnet(raw: object, parts: Parts) -> None:
    """Take every module that is ternary. Raises IngestError for what does not fit together."""
    given = parts.settings(raw, BitnetSettings)
    if given.use_rms_norm:
        raise IngestError(
            f"{parts.label}: {parts.place}use_rms_norm is true, which puts a norm before each "
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
    for module in _converted(given, parts):
        source = parts.left[f"{module}.weight"]
        if source.dtype == "u8":
            parts.take(f"{module}.weight_scale", SCALES)
        if not is_auto:
            raise parts.wrong(
                source,
                f"is stored as {source.dtype} {list(source.shape)}, expected packed weights (u8) and a weight_scale, "
                f"as {parts.place}linear_class is bitlinear; weights that are rounded when they are used have "
                "linear_class autobitlinear and quantization_mode online, and those that are not are named in "
                "modules_to_not_convert",
            )


def _read_online(given: BitnetSettings, parts: Parts) -> None:
    if not _is_kept(_HEAD, given.modules_to_not_convert, parts) and _HEAD not in parts.modules("weight"):
        raise IngestError(
            f"{parts.label}: {parts.place}modules_to_not_convert has not {_HEAD}, so that its "
            "weights are rounded, and those are the embedding's, which are not; expected it in the list"
        )
    for module in _converted(given, parts):
        weights = parts.take(f"{module}.weight", SCALES)
        rows, columns = weights.shape
        parts.add(f"{module}.weight", TernaryCodes(weights, None, False, (rows, columns)))


def _converted(given: BitnetSettings, parts: Parts) -> Iterator[str]:
    """Yield the linear layers whose weights are left, of those that transformers makes layers of BitNet."""
    modules = parts.modules("weight")
    bare = "" if any(module.startswith("model.") for module in modules) or _EMBEDDING not in modules else "model."
    for module in modules:
        source = parts.left[f"{module}.weight"]
        is_linear = len(source.shape) == 2 and not module.endswith((_EMBEDDING, "_embeddings"))
        name = module if module == _HEAD else f"{bare}{module}"
        if is_linear and not _is_kept(name, given.modules_to_not_convert, parts):
            yield module


def _is_kept(module: str, patterns: tuple[str, ...] | None, parts: Parts) -> bool:
    """Whether transformers keeps a module: `should_convert_module` of its quantizers, and their default without a list.

    A match ends where a part of the name does. Raises IngestError for what is no regular expression.
    """
    for index, pattern in enumerate((_HEAD,) if patterns is None else patterns):
        try:
            if module.endswith(pattern) or name_pattern(rf"(?:{pattern})\b(?!\A)").matches(module):
                return True
        except PatternError as error:
            raise IngestError(
                f"{parts.label}: {parts.place}modules_to_not_convert[{index}] is "
                f"{quoted(pattern)}: {error}; expected a name or a regular expression"
            ) from error
    return False
