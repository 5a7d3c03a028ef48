"""Whether a long text may be encoded line by line: the ids of the parts, joined, are those of the whole.

A text is cut between a line end and an ASCII letter that another ASCII character follows. No step of the library reads
over such a place, for this tokenizer, when all of this holds:

    added tokens       none has a line end before a letter in it, nor begins with a letter and takes the space before it
    normalizer         of steps that change characters by themselves or with combining ones, which neither a line end,
                       nor a letter before another ASCII character, has
    pre-tokenizer      no match of an expression reads a line end and a letter; and a lookaround ends soon
    model              BPE, whose vocabulary has no token with a line end before a letter: what merges is in it
    post-processor     it adds tokens before and behind the text, and changes none of it

So with some characters of context on both sides, for what looks around itself or stands at the beginning of a text, a
part has the same words and the same merges in it as within the whole. Tokens of the context are left out by their
offsets. Other models are not asked: Unigram compares sums over all of the text, whose rounding depends on what is
before; and only BPE is used without anything that splits a text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from pyc.runtime.errors import RunError
from pyc.runtime.text.regex_paths import match_kinds
from pyc.runtime.text.regex_shape import RegexError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

CONTEXT_CHARACTERS = 1024
"""Read before and behind a part. Lookarounds go as far as MOST_AHEAD each, nested as deep as regex_shape allows."""
MOST_AHEAD = 32

_LINE_END, _LETTER = 1, 2
_cut = re.compile(r"\n(?=[A-Za-z][\x00-\x7f])")
# U+010A: how byte-level tokenizers spell a line end. With byte fallback a token has the name of a byte.
_crossing = re.compile("(?:\n|\u010a|<0x0A>)(?:[A-Za-z]|<0x)")
_NORMALIZERS = frozenset(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Prepend", "Strip"])
_PRE_TOKENIZERS = frozenset(
    ["BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit"]
)


class _Document(msgspec.Struct, frozen=True):
    normalizer: object = None
    pre_tokenizer: object = None


def parts_of(text: str, size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the parts of a text, each of about `size` characters, or more up to a place for a cut."""
    begin = 0
    while begin < len(text):
        cut = None if len(text) - begin <= size else _cut.search(text, begin + size)
        end = cut.end() if cut else len(text)
        yield begin, end
        begin = end


def encode_part(plain: Backend, text: str, begin: int, end: int) -> list[int]:
    """Return the ids of `text` from `begin` to `end`, where it may be cut, by a tokenizer without a post-processor."""
    start = max(0, begin - CONTEXT_CHARACTERS)
    encoding = plain.encode(text[start : end + CONTEXT_CHARACTERS], add_special_tokens=False)
    pairs = zip(encoding.ids, encoding.offsets, strict=True)
    return [token_id for token_id, (first, _) in pairs if begin <= start + first < end]


def may_be_cut(document: bytes, backend: Backend) -> bool:
    """Whether the rules above hold for a tokenizer.json and what the library made of it."""
    steps = msgspec.json.decode(document, type=_Document)
    return (
        _adds_around(backend)
        and _merges_within(backend)
        and all(_is_normalizer_local(step) for step in _steps(steps.normalizer, "normalizers"))
        and all(_is_pre_tokenizer_local(step) for step in _steps(steps.pre_tokenizer, "pretokenizers"))
    )


def around(backend: Backend) -> tuple[list[int], list[int]]:
    """Return the ids that the post-processor adds before and behind a text."""
    encoding = backend.encode("a")
    own = [index for index, sequence in enumerate(encoding.sequence_ids) if sequence is not None]
    return (encoding.ids[: own[0]], encoding.ids[own[-1] + 1 :]) if own else ([], [])


def _adds_around(backend: Backend) -> bool:
    before, behind = around(backend)
    whole, plain = backend.encode("a").ids, backend.encode("a", add_special_tokens=False).ids
    return bool(plain) and whole == [*before, *plain, *behind]


def _merges_within(backend: Backend) -> bool:
    from tokenizers.models import BPE

    model = backend.model
    if not isinstance(model, BPE) or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    for token in backend.get_added_tokens_decoder().values():
        if _crossing.search(token.content) or (token.lstrip and token.content[:1] in string.ascii_letters):
            return False
    vocabulary = backend.get_vocab(with_added_tokens=True)
    if any(_crossing.search(token) for token in vocabulary):
        return False
    if not model.fuse_unk or (model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))):
        return True
    return all(letter in vocabulary for letter in string.ascii_letters)  # else unknown ones become one token


def _steps(step: object, members: str) -> Iterator[Mapping[str, object]]:
    """Yield the steps of a part, those of a sequence one by one."""
    if not isinstance(step, Mapping):
        return
    if step.get("type") != "Sequence":
        yield step
        return
    inner = step.get(members)
    for member in inner if isinstance(inner, list) else ():
        yield from _steps(member, members)


def _is_normalizer_local(step: Mapping[str, object]) -> bool:
    if step.get("type") == "Replace":
        text = _pattern(step, "String")
        return bool(text) and not set(text) & set("\n" + string.ascii_letters)
    return step.get("type") in _NORMALIZERS


def _is_pre_tokenizer_local(step: Mapping[str, object]) -> bool:
    if step.get("type") != "Split":
        return step.get("type") in _PRE_TOKENIZERS
    regex = _pattern(step, "Regex")
    if not regex:
        text = _pattern(step, "String")
        return bool(text) and not _crossing.search(text)
    try:
        return _LINE_END | _LETTER not in match_kinds(regex, _kinds_of, MOST_AHEAD)
    except (RegexError, RunError):
        return False


def _pattern(step: Mapping[str, object], kind: str) -> str:
    pattern = step.get("pattern")
    found = pattern.get(kind) if isinstance(pattern, Mapping) else None
    return found if isinstance(found, str) else ""


def _kinds_of(part: str) -> int:
    """Which kinds a part of an expression matches, asked of the engine that runs it. Raises RunError."""
    from tokenizers import NormalizedString, Regex

    from pyc.runtime.text.foreign_code import contained

    def matches(text: str) -> bool:
        normalized = NormalizedString(text)
        normalized.replace(Regex(f"(?i:{part})"), "\0")
        return normalized.normalized != text

    with contained(RunError, part):
        return _LINE_END * matches("\n") | _LETTER * matches(string.ascii_letters)
