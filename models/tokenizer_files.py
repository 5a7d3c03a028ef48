"""The tokenizer's files that the artifact carries, and the chat template under one name.

A chat template may lie in chat_template.jinja, in chat_template.json, or in tokenizer_config.json as text or
as a list of named templates, of which "default" counts. The artifact has it as chat_template.jinja.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from pyc.models.files import Directory
from pyc.models.messages import shown
from pyc.runtime.errors import IngestError

logger = logging.getLogger(__name__)

TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
_TEMPLATE_JSON = "chat_template.json"
CONFIG = "tokenizer_config.json"
_CARRIED = (TOKENIZER, CONFIG, "special_tokens_map.json")
SLOW_TOKENIZERS = ("tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")

FILES = (*_CARRIED, TEMPLATE, _TEMPLATE_JSON)
"""Every file that `read_tokenizer_files` may read."""


class _NamedTemplate(Struct, frozen=True):
    name: str
    template: str


class TokenizerConfig(Struct, frozen=True):
    """The fields of tokenizer_config.json that a build reads."""

    chat_template: str | tuple[_NamedTemplate, ...] | None = None
    do_lower_case: bool | None = None


class _LengthFile(Struct, frozen=True):
    model_max_length: int | float | None = None
    max_len: int | float | None = None


class _TemplateFile(Struct, frozen=True):
    chat_template: str


def read_tokenizer_files(directory: Directory) -> tuple[tuple[str, bytes], ...]:
    """Return (name, bytes) of tokenizer.json, its configuration and maps, and chat_template.jinja.

    Files that are not there are left out. Without any tokenizer the artifact takes token ids only, which is logged as
    a warning. Raises IngestError when there is a tokenizer but not in the form of tokenizer.json.
    """
    found = [(name, data) for name in _CARRIED if (data := directory.read(name)) is not None]
    if directory.locate(TOKENIZER) is None:
        slow = [name for name in SLOW_TOKENIZERS if directory.locate(name) is not None]
        if slow:
            raise IngestError(
                f"{directory.label}: found {slow[0]} but no {TOKENIZER}; write one with "
                "AutoTokenizer.from_pretrained(path).save_pretrained(path)"
            )
        logger.warning(
            "%s: there is no %s, so the artifact will take no text, only token ids in Python; "
            "AutoTokenizer.from_pretrained(base_model).save_pretrained(path) writes one",
            directory.label, TOKENIZER,
        )  # fmt: skip
    template = _chat_template(directory)
    return (*found, *(((TEMPLATE, template),) if template is not None else ()))


def read_tokenizer_config(directory: Directory) -> TokenizerConfig:
    """Return tokenizer_config.json, empty when there is none."""
    return directory.parse(CONFIG, TokenizerConfig) or TokenizerConfig()


def read_longest_text(directory: Directory) -> int | None:
    """Return the longest text in tokens by tokenizer_config.json, or None; "no limit" is a number like 1e30.

    Raises IngestError for what is no whole number of at least 1.
    """
    file = directory.parse(CONFIG, _LengthFile) or _LengthFile()
    name, length = "model_max_length", file.model_max_length
    if length is None:
        name, length = "max_len", file.max_len
    if length is None:
        return None
    if length < 1 or length != int(length):
        raise IngestError(
            f"{directory.label}: {CONFIG}: {name} is {length}, expected a whole number of at least 1; correct it, or "
            "leave it out for as long as the model has positions"
        )
    return int(length)


def _chat_template(directory: Directory) -> bytes | None:
    if (data := directory.read(TEMPLATE)) is not None:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise IngestError(f"{directory.label}: {TEMPLATE} is not UTF-8: {problem}") from problem
        return data
    if (file := directory.parse(_TEMPLATE_JSON, _TemplateFile)) is not None:
        return file.chat_template.encode("utf-8")
    template = read_tokenizer_config(directory).chat_template
    if template is None or isinstance(template, str):
        return None if template is None else template.encode("utf-8")
    named = {entry.name: entry.template for entry in template}
    if not named:
        return None
    if "default" not in named:
        raise IngestError(
            f"{directory.label}: {CONFIG}: chat templates {shown(', '.join(named))}, none is called 'default'"
        )
    return named["default"].encode("utf-8")
