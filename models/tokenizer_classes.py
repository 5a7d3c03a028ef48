"""What transformers 5 makes anew by the class of a tokenizer, otherwise than tokenizer.json, which is followed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Literal

import msgspec

from pyc.compiler.files.source_files import SourceFiles
from pyc.runtime.text.special_tokens import CONFIG, TOKENIZER

logger = logging.getLogger(__name__)

REMEDY = "download it again, or write it again with AutoTokenizer.from_pretrained(path).save_pretrained(path)"
BERT_CLASSES = frozenset(
    f"{family}Tokenizer"
    for family in (
        *("Bert", "DistilBert", "Electra", "Funnel", "LayoutLM", "LayoutLMv2"),
        *("Lxmert", "MPNet", "MobileBert", "Splinter", "SqueezeBert"),
    )
)
"""Of transformers 5, those that make the normalizer of tokenizer.json anew from flags of tokenizer_config.json. A BERT
that names none has the first."""
QWEN2_CLASS = "Qwen2Tokenizer"
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How that class splits texts, behind NFC, whatever tokenizer.json has."""
_BERT_FLAGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Of tokenizer_config.json, and what tokenizer.json calls them."""


class _Flags(msgspec.Struct, frozen=True):
    """Of tokenizer_config.json, where anything may stand: nothing depends on it."""

    do_lower_case: object = None
    strip_accents: object = None
    tokenize_chinese_chars: object = None
    tokenizer_class: object = None


class _BertNormalizer(msgspec.Struct, frozen=True, tag="BertNormalizer", tag_field="type"):
    lowercase: bool | None = None
    strip_accents: bool | None = None
    handle_chinese_chars: bool | None = None


class _BertDocument(msgspec.Struct, frozen=True):
    normalizer: _BertNormalizer


class _Pattern(msgspec.Struct, frozen=True):
    Regex: str


class _Split(msgspec.Struct, frozen=True, tag="Split", tag_field="type"):
    pattern: _Pattern
    behavior: Literal["Isolated"]
    invert: Literal[False] = False


class _ByteLevel(msgspec.Struct, frozen=True, tag="ByteLevel", tag_field="type"):
    add_prefix_space: bool
    use_regex: bool = True


class _SplitAndBytes(msgspec.Struct, frozen=True, tag="Sequence", tag_field="type"):
    pretokenizers: tuple[_Split, _ByteLevel]


class _Nfc(msgspec.Struct, frozen=True, tag="NFC", tag_field="type"):
    pass


class _QwenDocument(msgspec.Struct, frozen=True):
    pre_tokenizer: _SplitAndBytes
    normalizer: _Nfc


def warn_of_class(carried: Mapping[str, bytes], architecture: str, where: str, files: SourceFiles) -> None:
    """Log a warning for what transformers 5 does otherwise than the tokenizer.json among `carried`, by the class that
    it takes for a checkpoint of this architecture (tests/reference/test_tokenizers.py)."""
    flags = msgspec.json.decode(carried.get(CONFIG, b"{}"), type=_Flags)
    named = flags.tokenizer_class if isinstance(flags.tokenizer_class, str) else None
    family = None if named is None else named.removesuffix("Fast")
    if family is None or family in BERT_CLASSES:
        _warn_of_normalizer(flags, carried[TOKENIZER], where, files)
    classes = {"qwen2": (family,), "qwen3": (None, QWEN2_CLASS), "llama": (QWEN2_CLASS,), "bitnet": (QWEN2_CLASS,)}
    if family in classes.get(architecture, ()):
        _warn_of_splits(carried[TOKENIZER], where, files)


def _warn_of_splits(content: bytes, where: str, files: SourceFiles) -> None:
    try:
        document = msgspec.json.decode(content, type=_QwenDocument)
        split, letters = document.pre_tokenizer.pretokenizers
        if split.pattern.Regex == QWEN2_SPLIT and not letters.use_regex and not letters.add_prefix_space:
            return
    except msgspec.ValidationError:  # other parts than that class has
        pass
    files.warn(
        logger,
        "%s: %s splits texts, or normalizes them, otherwise than transformers 5 does by its class %s; the file is "
        "followed; for a model that was trained by transformers 5, %s",
        where, TOKENIZER, QWEN2_CLASS, REMEDY.partition(", or ")[2],
    )  # fmt: skip


def _warn_of_normalizer(flags: _Flags, content: bytes, where: str, files: SourceFiles) -> None:
    """Log a warning for each flag of tokenizer_config.json that tokenizer.json has otherwise, where the class makes its
    normalizer anew from them. One that is absent has a default."""
    if b'"BertNormalizer"' not in content:
        return
    try:
        normalizer = msgspec.json.decode(content, type=_BertDocument).normalizer
    except msgspec.ValidationError:  # one of several, or of other fields
        return
    given = {name: flag for name in _BERT_FLAGS if isinstance(flag := getattr(flags, name), bool)}
    lowers = given.get("do_lower_case", True)
    defaults = {"do_lower_case": True, "strip_accents": lowers, "tokenize_chinese_chars": True}
    for name, field in _BERT_FLAGS.items():
        wanted, done = given.get(name, defaults[name]), getattr(normalizer, field)
        if done is None and name == "strip_accents" and name in given:
            done = normalizer.lowercase  # accents go where letters become small ones
        if done is None or wanted == done:
            continue
        says = "says {}: {}" if name in given else "has no {}, which is {} then"
        files.warn(
            logger,
            "%s: %s %s, and the normalizer of %s %s: %s, which is followed; transformers follows the former; %s",
            where, CONFIG, says.format(name, str(wanted).lower()), TOKENIZER, field, str(done).lower(), REMEDY,
        )  # fmt: skip
