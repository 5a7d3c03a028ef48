"""What a tokenizer.json may ask of the library that runs it.

The library (tokenizers, in Rust) takes any regular expression, and replaces a letter by a million of them when the
file says so; nothing can interrupt it. This is a strict reader of the parts of the file that cost time or memory: it
knows which steps there are, how long they may make a text, and which regular expressions are safe (regex_shape.py).
That the file as a whole works is tried while building (tokenizer_trial.py).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import msgspec

from pyc.runtime.host.recursion import refuse_deep_caller
from pyc.runtime.text.printable import printable
from pyc.runtime.text.regex_shape import RegexError, check_regex

MAX_STEPS = 32
MAX_DEPTH = 6
MAX_PART_CHARACTERS = 64
MAX_GROWTH = 256
MAX_ADDED_CHARACTERS = 4096
MAX_TEMPLATE_PIECES = 64
MAX_WORD_CHARACTERS = 10_000

MODELS = frozenset(["BPE", "Unigram", "WordLevel", "WordPiece"])
NORMALIZERS = frozenset(
    [
        "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend",
        "Replace", "Sequence", "Strip", "StripAccents",
    ]
)
PRE_TOKENIZERS = frozenset(
    [
        "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace", "Punctuation",
        "Sequence", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit",
    ]
)
DECODERS = frozenset(
    [
        "BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Replace", "Sequence", "Strip",
        "WordPiece",
    ]
)
POST_PROCESSORS = frozenset(
    [
        "BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing",
    ]
)

# The longest that one character becomes: NFKC makes 18 of U+FDFA, two bytes and more are a character each.
_GROWTH = {"NFKC": 18, "NFKD": 18, "NFD": 4, "BertNormalizer": 6, "ByteLevel": 4, "Lowercase": 3}


class TokenizerRuleError(ValueError):
    """A tokenizer.json that is not run; the text says what in it and why."""


class _AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Model(msgspec.Struct, frozen=True):
    type: str | None = None
    max_input_chars_per_word: int | None = None


class _Document(msgspec.Struct, frozen=True):
    """The parts that are read here; the vocabulary is not one."""

    model: _Model
    added_tokens: list[_AddedToken] = []  # msgspec copies it
    normalizer: object = None
    pre_tokenizer: object = None
    post_processor: object = None
    decoder: object = None


def check_tokenizer_json(content: bytes) -> None:
    """Raise TokenizerRuleError for a tokenizer.json that is malformed or may exhaust time or memory."""
    try:
        document = msgspec.json.decode(content, type=_Document)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError, too
        refuse_deep_caller(error)
        raise TokenizerRuleError(f"not a tokenizer: {printable(str(error))}") from error
    if document.model.type is not None and document.model.type not in MODELS:
        known = ", ".join(sorted(MODELS))
        raise TokenizerRuleError(f"model: type {document.model.type!r:.60} is not known; known: {known}")
    if (document.model.max_input_chars_per_word or 0) > MAX_WORD_CHARACTERS:
        raise TokenizerRuleError(f"model: max_input_chars_per_word is above {MAX_WORD_CHARACTERS}")
    for token in document.added_tokens:
        if not 0 < len(token.content) <= MAX_ADDED_CHARACTERS:
            raise TokenizerRuleError(
                f"added_tokens: token {token.id} has {len(token.content)} characters, "
                f"expected 1 to {MAX_ADDED_CHARACTERS}"
            )
    _Steps("normalizer", NORMALIZERS, "normalizers").check(document.normalizer)
    _Steps("pre_tokenizer", PRE_TOKENIZERS, "pretokenizers").check(document.pre_tokenizer)
    _Steps("decoder", DECODERS, "decoders").check(document.decoder)
    _Steps("post_processor", POST_PROCESSORS, "processors").check(document.post_processor)


class _Steps:
    """The steps of one part of the file, such as its normalizers: counted, and how long they make a text."""

    def __init__(self, part: str, known: frozenset[str], members: str) -> None:
        self._part = part
        self._known = known
        self._members = members
        self._count = 0
        self._growth = 1

    def check(self, step: object, depth: int = 0) -> None:
        """Raise TokenizerRuleError."""
        if step is None:
            return
        if not isinstance(step, Mapping):
            raise TokenizerRuleError(f"{self._part}: got {type(step).__name__}, expected a mapping")
        self._count += 1
        if self._count > MAX_STEPS or depth > MAX_DEPTH:
            raise TokenizerRuleError(f"{self._part}: more than {MAX_STEPS} steps, or nested more than {MAX_DEPTH} deep")
        kind = step.get("type")
        if not isinstance(kind, str) or kind not in self._known:
            known = ", ".join(sorted(self._known))
            raise TokenizerRuleError(f"{self._part}: type {kind!r:.60} is not known; known: {known}")
        if kind == "Sequence":
            members = step.get(self._members)
            if not isinstance(members, list):
                raise TokenizerRuleError(f"{self._part}: a Sequence without its list {self._members}")
            for member in members:
                self.check(member, depth + 1)
            return
        self._growth *= self._growth_of(kind, step)
        if self._growth > MAX_GROWTH:
            raise TokenizerRuleError(f"{self._part}: it can make a text more than {MAX_GROWTH} times as long")

    def _growth_of(self, kind: str, step: Mapping[str, object]) -> int:
        if "pattern" in step:
            self._check_pattern(step["pattern"])
        for name in ("content", "prepend", "replacement", "delimiter", "prefix", "suffix", "pad_token"):
            text = step.get(name)
            if isinstance(text, str) and len(text) > MAX_PART_CHARACTERS:
                raise TokenizerRuleError(
                    f"{self._part}: {kind}: {name} has {len(text)} characters, expected at most {MAX_PART_CHARACTERS}"
                )
        if kind == "Replace":
            content = step.get("content")
            return max(1, len(content)) if isinstance(content, str) else 1
        if kind == "Precompiled":
            return _check_precompiled(step.get("precompiled_charsmap"))
        if kind == "TemplateProcessing":
            _check_template(step)
        return _GROWTH.get(kind, 1)

    def _check_pattern(self, pattern: object) -> None:
        if isinstance(pattern, str) or not isinstance(pattern, Mapping):  # Split takes no other, Replace neither
            return
        regex = pattern.get("Regex")
        if isinstance(regex, str):
            try:
                check_regex(regex)
            except RegexError as error:
                raise TokenizerRuleError(f"{self._part}: {error}") from error


def _check_precompiled(charsmap: object) -> int:
    """The most bytes that this table of sentencepiece's writes for a character (its format: a size, a double array of
    32-bit units, then texts that end with NUL)."""
    if not isinstance(charsmap, str):
        return 1
    try:
        table = base64.b64decode(charsmap, validate=True)
    except binascii.Error as error:
        raise TokenizerRuleError(f"normalizer: Precompiled: not base64: {error}") from error
    trie_bytes = int.from_bytes(table[:4], "little")
    if len(table) < 4 or trie_bytes % 4 or not 0 < trie_bytes <= len(table) - 4:
        raise TokenizerRuleError(f"normalizer: Precompiled: a table of {trie_bytes} bytes in {len(table)}")
    longest = max(map(len, table[4 + trie_bytes :].split(b"\0")))
    if longest > MAX_PART_CHARACTERS:
        raise TokenizerRuleError(f"normalizer: Precompiled: a text of {longest} bytes, expected at most 64")
    return max(1, longest)


def _check_template(step: Mapping[str, object]) -> None:
    """A TemplateProcessing: a few pieces, of special tokens that it explains."""
    tokens = step.get("special_tokens")
    known = tokens if isinstance(tokens, Mapping) else {}
    for name in ("single", "pair"):
        pieces = step.get(name)
        if not isinstance(pieces, Sequence) or isinstance(pieces, str):
            continue
        if len(pieces) > MAX_TEMPLATE_PIECES:
            raise TokenizerRuleError(f"post_processor: {name} has more than {MAX_TEMPLATE_PIECES} pieces")
        for piece in pieces:
            special = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
            token = special.get("id") if isinstance(special, Mapping) else None
            if token is None:
                continue
            entry = known.get(token) if isinstance(token, str) else None
            ids = entry.get("ids") if isinstance(entry, Mapping) else None
            if not isinstance(ids, list) or len(ids) > MAX_TEMPLATE_PIECES:
                raise TokenizerRuleError(
                    f"post_processor: {name} adds {token!r:.60}, which special_tokens does not list with at most "
                    f"{MAX_TEMPLATE_PIECES} ids"
                )
