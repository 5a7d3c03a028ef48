"""The arguments that sentence_bert_config.json has sentence-transformers load tokenizer, configuration and model with.

What says where texts are cut is followed, what changes no vector, or only how it is rounded, is passed over, and the
rest is refused by name: it stands before the files of the checkpoint there, and pyc reads those alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from pyc.models.messages import shown
from pyc.models.tokenizer_files import Side, checked_length
from pyc.runtime.errors import IngestError

LENGTH = "model_max_length"
SIDE = "truncation_side"

Arguments = dict[str, object]
_SAME_TOKENIZER: dict[str, tuple[object, ...]] = {
    "use_fast": (True, False, None),
    "padding_side": ("right",),
    "clean_up_tokenization_spaces": (True, False, None),
}
_SAME_MODEL = (
    *("attn_implementation", "torch_dtype", "dtype", "low_cpu_mem_usage", "device_map", "add_pooling_layer"),
    "use_safetensors",
)
_SAME_CONFIG = ("attn_implementation", "torch_dtype", "dtype", "use_cache")
# Of every load, and set by sentence-transformers whatever the file says.
_HUB = ("trust_remote_code", "revision", "token", "cache_dir", "local_files_only", "subfolder")


class ArgumentFields(Struct, frozen=True):
    """The fields of sentence_bert_config.json that have arguments, under old names and new ones."""

    tokenizer_args: Arguments | None = None
    processor_kwargs: Arguments | None = None
    config_args: Arguments | None = None
    config_kwargs: Arguments | None = None
    model_args: Arguments | None = None
    model_kwargs: Arguments | None = None


@dataclass(frozen=True, slots=True)
class TextArguments:
    """Where texts are cut; None where the arguments do not say. `has_length`: they have one, and None is no limit."""

    side: Side | None = None
    has_length: bool = False
    length: int | None = None


def read_arguments(
    fields: ArgumentFields, config: Mapping[str, object], tokenizer_config: Mapping[str, object], where: str
) -> TextArguments:
    """Return what the arguments say of texts; `config` is the checkpoint's config.json, `tokenizer_config` the
    tokenizer's.

    Raises IngestError for one that would make other vectors of a text.
    """
    _check(fields, "model_args", "model_kwargs", _SAME_MODEL, {}, where)
    _check(fields, "config_args", "config_kwargs", _SAME_CONFIG, config, where)
    name, given = _chosen(fields, "tokenizer_args", "processor_kwargs")
    for argument, value in given.items():
        is_same = argument in _HUB or value in _SAME_TOKENIZER.get(argument, ())
        is_same = is_same or _has(tokenizer_config, argument, value)
        if not is_same and argument not in (LENGTH, SIDE):
            raise _refusal(f"{where}: {name}.{shown(argument)}", value, "remove it, or save the tokenizer with it")
    side: Side | None = None
    if SIDE in given:
        try:
            side = msgspec.convert(given[SIDE], Side)
        except msgspec.ValidationError as error:
            raise IngestError(
                f"{where}: {name}.{SIDE} is {shown(repr(given[SIDE]))}, expected 'left' or 'right'; correct it"
            ) from error
    length = given.get(LENGTH)
    if length is not None and (isinstance(length, bool) or not isinstance(length, int | float)):
        raise IngestError(
            f"{where}: {name}.{LENGTH} is {shown(repr(length))}, expected a whole number of at least 1; correct it"
        )
    return TextArguments(side, LENGTH in given, checked_length(length, f"{where}: {name}.{LENGTH}"))


def _chosen(fields: ArgumentFields, old: str, new: str) -> tuple[str, Arguments]:
    """The arguments that count: those under the old name, where both are there."""
    given = getattr(fields, old)
    return (new, getattr(fields, new) or {}) if given is None else (old, given)


def _check(
    fields: ArgumentFields, old: str, new: str, same: tuple[str, ...], config: Mapping[str, object], where: str
) -> None:
    name, given = _chosen(fields, old, new)
    for argument, value in given.items():
        if argument not in same and argument not in _HUB and not _has(config, argument, value):
            raise _refusal(f"{where}: {name}.{shown(argument)}", value, "remove it, or write it into config.json")


def _has(config: Mapping[str, object], name: str, value: object) -> bool:
    return name in config and config[name] == value


def _refusal(what: str, value: object, remedy: str) -> IngestError:
    return IngestError(f"{what} is {shown(repr(value))}, expected none; {remedy}, or embed with sentence-transformers")
