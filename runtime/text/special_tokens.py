"""What a model's special tokens are called, as AutoTokenizer of transformers 5 has them: the names of chat templates.

A name is what tokenizer_config.json says, or special_tokens_map.json, which counts where tokenizer_config.json has no
added_tokens_decoder and then goes first. A name that is null has no token. A name that neither file has gets the
default of the tokenizer's class, where that class has one, and the token of tokenizer.json's padding is a pad_token;
config.json's ids name nothing (tests/reference/test_special_tokens.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import msgspec

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
MAP = "special_tokens_map.json"
MODEL = "config.json"
PADDING = "pad_token"
EXTRA, ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
STANDARD = ("bos_token", "eos_token", "unk_token", "sep_token", PADDING, "cls_token", "mask_token")

_DEFAULTS: dict[str, dict[str, str]] = {
    "BertTokenizer": {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
    "CodeGenTokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    "GPT2Tokenizer": dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
}
"""The tokens that a class has where nothing names them."""
_REGISTERED = {"bert": "BertTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer"}
"""The class of a `model_type` whose files name none."""
_ALWAYS = {"qwen2": "Qwen2Tokenizer", "mistral": ""}
"""The class of a `model_type` whatever its files name; "" has no defaults."""


class AddedToken(msgspec.Struct, frozen=True):
    """A token with its flags."""

    content: str


_Token = str | AddedToken | None


class _Standard(msgspec.Struct, frozen=True):
    """The names that every tokenizer may have; what is not text or a token is an error."""

    bos_token: _Token = None
    eos_token: _Token = None
    unk_token: _Token = None
    sep_token: _Token = None
    pad_token: _Token = None
    cls_token: _Token = None
    mask_token: _Token = None


class _Model(msgspec.Struct, frozen=True):
    model_type: object = None
    tokenizer_class: object = None


class _Padding(msgspec.Struct, frozen=True):
    pad_token: str


class _Document(msgspec.Struct, frozen=True):
    """The parts of tokenizer.json that are read here; the vocabulary is not one."""

    pre_tokenizer: object = None
    decoder: object = None
    padding: _Padding | None = None


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token as `file` says it: a text, or a mapping with its flags. Null says that there is none."""

    entry: str | dict[str, object] | None
    file: str

    @property
    def text(self) -> str | None:
        """Its text, or None where there is no token."""
        return cast("str", self.entry["content"]) if isinstance(self.entry, dict) else self.entry


def named_tokens(config: bytes | None, special_map: bytes | None) -> dict[str, NamedToken]:
    """Return the tokens that the files name, the seven of every tokenizer first. Raises ArtifactError."""
    configured = _document(config, CONFIG)
    standard, others = _standard(configured, CONFIG), _others(configured, CONFIG)
    first = {name: token for name, token in others.items() if isinstance(token.entry, str)}
    first |= _others(configured.get(EXTRA), CONFIG)
    first = first or _others(configured.get("model_specific_special_tokens"), CONFIG)
    if "added_tokens_decoder" not in configured:
        mapped = _document(special_map, MAP)
        standard |= _standard(mapped, MAP)
        others |= _others(mapped, MAP)
        first |= _others(mapped.get(EXTRA), MAP)
    others |= first
    ordered = {name: standard[name] for name in STANDARD if name in standard}
    return ordered | {name: others[name] for name in sorted(others)}


@dataclass(frozen=True, slots=True)
class ListedToken:
    """An entry of a list of special tokens, a text or a mapping with one. The library knows it as one before it reads
    added_tokens.json where `is_early`."""

    entry: object
    file: str
    is_early: bool


def listed_tokens(config: bytes | None, special_map: bytes | None) -> list[ListedToken]:
    """Return the entries of the list of further special tokens that counts. Raises ArtifactError.

    `extra_special_tokens` is what `additional_special_tokens` is called now: it counts where both are there.
    """
    configured = _document(config, CONFIG)
    extra, additional = configured.get(EXTRA, ()), configured.get(ADDITIONAL, ())
    if ADDITIONAL in configured and not extra:
        extra, additional = additional, ()
    has_extra = (EXTRA in configured or ADDITIONAL in configured) and not isinstance(extra, dict)
    found = _entries(extra, CONFIG, is_early=True)
    later = _entries(additional, CONFIG, is_early=False)
    if "added_tokens_decoder" not in configured:
        mapped = _document(special_map, MAP)
        if ADDITIONAL in mapped:
            later = _entries(mapped[ADDITIONAL], MAP, is_early=False)
        if EXTRA in mapped:
            has_extra = not isinstance(mapped[EXTRA], dict)  # which names tokens, and stands for the list
            found += _entries(mapped[EXTRA], MAP, is_early=True)
    return found if has_extra else later


def _entries(entries: object, file: str, *, is_early: bool) -> list[ListedToken]:
    """Those of a list that are tokens."""
    found = entries if isinstance(entries, list) else []
    return [
        ListedToken(entry, file, is_early and (file == MAP or isinstance(entry, str)))
        for entry in found
        if entry and _is_token(entry)
    ]


def _is_token(entry: object) -> bool:
    return isinstance(entry, str) or (isinstance(entry, dict) and isinstance(entry.get("content"), str))


def special_tokens(
    named: dict[str, NamedToken], tokenizer: bytes, config: bytes | None, model: bytes | None
) -> dict[str, str]:
    """Return the text of each special token that a model has, by name. `config` and `model` say the tokenizer's class.

    Raises ArtifactError.
    """
    found = {name: token.text for name, token in named.items() if token.text is not None}
    defaults = _defaults(_document(config, CONFIG).get("tokenizer_class"), model, tokenizer)
    if b'"pad_token"' in tokenizer and (padding := _parts(tokenizer).padding) is not None:
        defaults.setdefault("pad_token", padding.pad_token)
    return found | {name: text for name, text in defaults.items() if name not in named}


def _defaults(tokenizer_class: object, model: bytes | None, tokenizer: bytes) -> dict[str, str]:
    try:
        file = msgspec.json.decode(model or b"{}", type=_Model)
    except ValueError as error:
        raise ArtifactError(f"{MODEL}: {error}; build the artifact again") from error
    kind = str(file.model_type)
    given = tokenizer_class or file.tokenizer_class
    named = given.removesuffix("Fast") if isinstance(given, str) else _REGISTERED.get(kind, "")
    chosen = _ALWAYS.get(kind, named)
    if chosen == "LlamaTokenizer" and b'"ByteLevel"' in tokenizer and _is_byte_level(_parts(tokenizer)):
        return {}
    return dict(_DEFAULTS.get(chosen, {}))


def _is_byte_level(parts: _Document) -> bool:
    """Whether words are of bytes: transformers then takes no LlamaTokenizer, whatever the class is called."""
    return any(_has_byte_level(part) for part in (parts.pre_tokenizer, parts.decoder))


def _has_byte_level(step: object) -> bool:
    if isinstance(step, dict):
        return step.get("type") == "ByteLevel" or any(map(_has_byte_level, step.values()))
    return isinstance(step, list) and any(map(_has_byte_level, step))


def _parts(tokenizer: bytes) -> _Document:
    try:
        return msgspec.json.decode(tokenizer, type=_Document)
    except (ValueError, RecursionError) as error:
        refuse_deep_caller(error)
        raise ArtifactError(f"tokenizer.json: {error}; build the artifact again") from error


def _document(content: bytes | None, file: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(content or b"{}", type=dict[str, object])
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError, too
        refuse_deep_caller(error)
        raise ArtifactError(f"{file}: {error}; build the artifact again") from error


def _standard(document: dict[str, object], file: str) -> dict[str, NamedToken]:
    """The standard tokens that a file names, and those that it says are none."""
    try:
        msgspec.convert(document, _Standard)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{file}: {error}; build the artifact again") from error
    return {name: _named(document[name], file) for name in STANDARD if name in document}


def _others(document: object, file: str) -> dict[str, NamedToken]:
    """The tokens whose names only this model has, such as image_token."""
    entries = cast("dict[str, object]", document) if isinstance(document, dict) else {}
    return {
        name: _named(value, file)
        for name, value in entries.items()
        if name.endswith("_token") and name not in STANDARD and _is_token(value)
    }


def _named(value: object, file: str) -> NamedToken:
    return NamedToken(cast("str | dict[str, object] | None", value), file)
