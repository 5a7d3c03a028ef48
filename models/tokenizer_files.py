"""The tokenizer's files that the artifact carries, chat templates (chat_templates.py) among them."""

from __future__ import annotations

import logging
from typing import Literal

from msgspec import Struct

from pyc.models import added_tokens
from pyc.models.chat_templates import TEMPLATE_JSON, Templates, read_chat_templates
from pyc.models.files import Directory
from pyc.runtime.errors import IngestError
from pyc.runtime.text.chat.template_files import DEFAULT_FILE
from pyc.runtime.text.special_tokens import CONFIG, MAP, TOKENIZER

logger = logging.getLogger(__name__)

_CARRIED = (TOKENIZER, CONFIG, MAP)
SLOW_TOKENIZERS = ("tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")

FILES = (*_CARRIED, added_tokens.FILE, DEFAULT_FILE, TEMPLATE_JSON)
"""Every file that `read_tokenizer_files` may read, but for those of `chat_templates.template_files`."""


Side = Literal["left", "right"]
"""The end of a text that goes where the text is too long."""


class TokenizerConfig(Struct, frozen=True):
    """The fields of tokenizer_config.json that a build reads."""

    chat_template: Templates = None
    do_lower_case: bool | None = None


class _SideFile(Struct, frozen=True):
    truncation_side: Side | None = None


class _Truncation(Struct, frozen=True):
    direction: str = "Right"


class _TruncationFile(Struct, frozen=True):
    truncation: _Truncation | None = None


class _LengthFile(Struct, frozen=True):
    model_max_length: int | float | None = None
    max_len: int | float | None = None


def read_tokenizer_files(directory: Directory, rows: int) -> tuple[tuple[str, bytes], ...]:
    """Return (name, bytes) of tokenizer.json, its configuration and maps, and of the chat templates.

    tokenizer.json has the added tokens of the files beside it, too, and none beyond the `rows` of the embedding
    (models/added_tokens.py). Files that are not there are left out. Without any tokenizer the artifact takes token ids
    only, which is logged as a warning. Raises IngestError when there is a tokenizer but not in the form of
    tokenizer.json, or with a list of tokens that does not fit it.
    """
    found = {name: data for name in _CARRIED if (data := directory.read(name)) is not None}
    if TOKENIZER in found:
        listed = directory.read(added_tokens.FILE)
        found[TOKENIZER] = added_tokens.with_added_tokens(found, listed, rows, directory.label, directory.files)
    else:
        slow = [name for name in SLOW_TOKENIZERS if directory.locate(name) is not None]
        if slow:
            raise IngestError(
                f"{directory.label}: found {slow[0]} but no {TOKENIZER}; write one with "
                "AutoTokenizer.from_pretrained(path).save_pretrained(path)"
            )
        directory.files.warn(
            logger,
            "%s: there is no %s, so the artifact will take no text, only token ids in Python; "
            "AutoTokenizer.from_pretrained(base_model).save_pretrained(path) writes one",
            directory.label, TOKENIZER,
        )  # fmt: skip
    configured = read_tokenizer_config(directory).chat_template
    return (*found.items(), *read_chat_templates(directory, configured, CONFIG))


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
    return checked_length(length, f"{directory.label}: {CONFIG}: {name}")


def checked_length(length: int | float | None, what: str) -> int | None:
    """Return a length in tokens, None for none. Raises IngestError, which begins with `what` it is."""
    if length is None:
        return None
    if not length >= 1 or length != int(length):
        raise IngestError(
            f"{what} is {length}, expected a whole number of at least 1; correct it, or "
            "leave it out for as long as the model has positions"
        )
    return int(length)


def read_truncation_side(directory: Directory) -> Side:
    """Return the end that texts lose: by tokenizer_config.json, else by tokenizer.json, as in transformers."""
    file = directory.parse(CONFIG, _SideFile)
    if file is not None and file.truncation_side is not None:
        return file.truncation_side
    if b'"Left"' not in (directory.read(TOKENIZER) or b""):  # most files need not be parsed for it
        return "right"
    document = directory.parse(TOKENIZER, _TruncationFile) or _TruncationFile()
    return "left" if document.truncation is not None and document.truncation.direction == "Left" else "right"
