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
    """The text of a token, or None where `file` says that there is none."""

    text: str | None
    file: str


def named_tokens(config: bytes | None, special_map: bytes | None) -> dict[str, NamedToken]:
    """Return the tokens that the files name, the seven of every tokenizer first. Raises ArtifactError."""
    configured = _document(config, CONFIG)
    found = _tokens(configured, CONFIG)
    extra = configured.get("extra_special_tokens")
    if isinstance(extra, dict):
        found |= _others(cast("dict[str, object]", extra), CONFIG)
    if "added_tokens_decoder" not in configured:
        found |= _tokens(_document(special_map, MAP), MAP)
    standard = {name: found[name] for name in STANDARD if name in found}
    return standard | {name: found[name] for name in sorted(found.keys() - standard.keys())}


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


def _tokens(document: dict[str, object], file: str) -> dict[str, NamedToken]:
    """The tokens that a file names, and the standard ones that it says are none."""
    try:
        standard = msgspec.convert(document, _Standard)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{file}: {error}; build the artifact again") from error
    found = {name: NamedToken(_content(getattr(standard, name)), file) for name in STANDARD if name in document}
    return found | _others(document, file)


def _others(document: dict[str, object], file: str) -> dict[str, NamedToken]:
    """The tokens whose names only this model has, such as image_token."""
    found: dict[str, NamedToken] = {}
    for name, value in document.items():
        is_token = isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))
        if name.endswith("_token") and name not in STANDARD and is_token:
            text = value if isinstance(value, str) else cast("dict[str, str]", value)["content"]
            found[name] = NamedToken(text, file)
    return found


def _content(token: _Token) -> str | None:
    return token.content if isinstance(token, AddedToken) else token
