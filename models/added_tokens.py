"""Added tokens that only the files beside tokenizer.json have, made part of it as AutoTokenizer of transformers 5 does.

tokenizer_config.json lists them in `added_tokens_decoder` (id to token); where it has none, added_tokens.json does
(token to id). What a list says of a token's flags counts before what tokenizer.json says, but for added_tokens.json,
which says nothing of flags. A special token that is named, such as eos_token, or stands in a list of further ones, and
is only a word of the vocabulary becomes an added token, too (tests/reference/test_added_tokens.py).

Added tokens without a row of the embedding, such as a [PAD] that a training tool put behind the vocabulary of a model
that was never resized, are left out with a warning: the model cannot read them, and a text that spells one stays text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.messages import quoted
from pyc.models.strict_json import MAX_MANY_VALUES, decode
from pyc.runtime.errors import ArtifactError, IngestError
from pyc.runtime.text.special_tokens import CONFIG, MAP, PADDING, STANDARD, TOKENIZER, listed_tokens, named_tokens

logger = logging.getLogger(__name__)

FILE = "added_tokens.json"
_TOKEN_ID = re.compile("[0-9]{1,9}")
_REMEDY = "write the tokenizer again with AutoTokenizer.from_pretrained(path).save_pretrained(path)"


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    """An added token; `normalized` is by default what it is for the library: true unless the token is special."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    def flags(self) -> dict[str, bool]:
        normalized = not self.special if self.normalized is None else self.normalized
        return {
            "single_word": self.single_word,
            "lstrip": self.lstrip,
            "rstrip": self.rstrip,
            "normalized": normalized,
            "special": self.special,
        }


class _Held(_Token, frozen=True, kw_only=True):
    id: int


class _Config(msgspec.Struct, frozen=True):
    added_tokens_decoder: dict[str, _Token] | None = None
    tokenizer_class: object = None


class _Document(msgspec.Struct, frozen=True):
    """The parts of tokenizer.json that are always read; the vocabulary is not one."""

    added_tokens: list[_Held] = []  # msgspec copies it
    normalizer: object = None


class _Words(msgspec.Struct, frozen=True):
    vocab: object = None


class _WithWords(msgspec.Struct, frozen=True):
    """The parts of tokenizer.json that give tokens their ids."""

    model: _Words = _Words()
    added_tokens: list[_Held] = []  # msgspec copies it


def token_ids(content: bytes, where: str) -> dict[str, int]:
    """Return every token of a tokenizer.json, added ones among them, with its id; IngestError where it is malformed."""
    try:
        parts = msgspec.json.decode(content, type=_WithWords)
    except (ValueError, RecursionError) as problem:
        raise IngestError(f"{where}: {problem}; {_REMEDY}") from problem
    words = _vocabulary({"model": {"vocab": parts.model.vocab}})
    return words | {token.content: token.id for token in parts.added_tokens}


def with_added_tokens(
    files: Mapping[str, bytes], listed: bytes | None, rows: int, where: str, opened: SourceFiles
) -> bytes:
    """Return tokenizer.json of `files` with the tokens that tokenizer_config.json, special_tokens_map.json and
    added_tokens.json (`listed`) add to it, or change in it, and without those beyond the `rows` of the embedding: the
    same bytes where there are none.

    A token beyond the rows stays where the files name it for what texts have, such as eos_token, and is refused then
    (tokenizer_checks.py). `opened` are the files of the build, which says a warning once. Raises IngestError for a list
    that is malformed, and for a token whose id is not the one that it gets.
    """
    content = files[TOKENIZER]
    try:
        parts = msgspec.json.decode(content, type=_Document)
    except (ValueError, RecursionError):
        return content  # check_tokenizer says what is wrong with it
    held = {token.content: token for token in parts.added_tokens}
    given = decode(files.get(CONFIG, b"{}"), _Config, f"{where}: {CONFIG}", max_values=MAX_MANY_VALUES)
    named = _named(files, where)
    tokens, file = _listed(given, listed, held, named, where)
    if _is_of_llama_2(given, parts):
        tokens = {text: (replace(token, normalized=False), number) for text, (token, number) in tokens.items()}
    tokens |= {text: (token, token.id) for text, token in held.items() if text in named.by_name and text not in tokens}
    tokens = {text: (_special(token) if text in named.by_name else token, n) for text, (token, n) in tokens.items()}
    beyond = _beyond(held, tokens, named, rows)
    if beyond:
        opened.warn(
            logger, "%s: left out %s, of ids from %d, as the embedding has %d rows",
            where, ", ".join(map(quoted, list(beyond)[:3])) + (" and others" if len(beyond) > 3 else ""),
            min(beyond.values()), rows,
        )  # fmt: skip
    changed = {
        text: token for text, token in tokens.items()
        if text not in beyond and (text not in held or held[text].flags() != token[0].flags())
    }  # fmt: skip
    words = {text: token for text, token in named.every.items() if text not in held and text not in tokens}
    if not changed and not words and not beyond.keys() & held.keys():
        return content
    try:
        document: dict[str, Any] = msgspec.json.decode(content)
    except (ValueError, RecursionError):  # in a part that was skipped above
        return content
    return _completed(document, changed, words, beyond, f"{where}: {file}") or content


def _beyond(
    held: Mapping[str, _Held], tokens: Mapping[str, tuple[_Token, int]], named: _Named, rows: int
) -> dict[str, int]:
    """Return the tokens without a row that nothing is to have, with their ids."""
    ids = {text: token.id for text, token in held.items()} | {text: number for text, (_, number) in tokens.items()}
    used = {token.content for name, token in named.names if name != PADDING}
    return {text: number for text, number in ids.items() if number >= rows and text not in used}


def _completed(
    document: dict[str, Any],
    changed: Mapping[str, tuple[_Token, int]],
    words: Mapping[str, _Token],
    beyond: Container[str],
    where: str,
) -> bytes | None:
    """Return tokenizer.json with the tokens `changed`, and those of `words` that its vocabulary has, and without those
    `beyond` the embedding; None where that is what it was."""
    vocabulary = _vocabulary(document)
    held = document.get("added_tokens", [])
    entries = {token["content"]: token for token in held if token["content"] not in beyond}
    following = max(len(vocabulary), 1 + max((token["id"] for token in entries.values()), default=-1))
    special = {text: (token, vocabulary[text]) for text, token in words.items() if text in vocabulary}
    for text, (token, wanted) in (*changed.items(), *special.items()):
        token_id = entries[text]["id"] if text in entries else vocabulary.get(text, following)
        following += token_id == following
        if wanted != token_id:
            raise IngestError(
                f"{where}: token {quoted(text)} has id {wanted}, and would get id {token_id} as {TOKENIZER} stands; "
                f"{_REMEDY}"
            )
        entries[text] = {"id": token_id, "content": text, **token.flags()}
    if not changed and not special and len(entries) == len(held):
        return None
    document["added_tokens"] = sorted(entries.values(), key=lambda token: int(token["id"]))
    return msgspec.json.encode(document)


@dataclass(frozen=True, slots=True)
class _Named:
    """The special tokens that the files name, such as eos_token, with their names, and those that lists have."""

    names: tuple[tuple[str, _Token], ...]
    lists: tuple[_Token, ...]
    early: frozenset[str]
    """The texts of lists that make tokens of added_tokens.json special."""

    @property
    def by_name(self) -> frozenset[str]:
        return frozenset(token.content for _, token in self.names)

    @property
    def every(self) -> dict[str, _Token]:
        """Each token once, as what comes last says."""
        return {token.content: token for token in (*(token for _, token in self.names), *self.lists)}


def _named(files: Mapping[str, bytes], where: str) -> _Named:
    try:
        named = named_tokens(files.get(CONFIG), files.get(MAP))
        listed = listed_tokens(files.get(CONFIG), files.get(MAP))
    except ArtifactError as problem:
        raise IngestError(f"{where}: {str(problem).partition(';')[0]}") from problem
    names = tuple((name, _token_of(token.entry, token.file, where)) for name, token in named.items() if token.text)
    lists = tuple(_token_of(each.entry, each.file, where) for each in listed)
    early = (token.content for token, each in zip(lists, listed, strict=True) if each.is_early)
    return _Named(names, lists, frozenset(early))


def _token_of(entry: object, file: str, where: str) -> _Token:
    """The special token of a text, or of a mapping with flags."""
    if isinstance(entry, str):
        return _Token(content=entry, special=True)
    try:
        token = msgspec.convert(entry, _Token)
    except msgspec.ValidationError as problem:
        raise IngestError(f"{where}: {file}: {problem}; {_REMEDY}") from problem
    return replace(token, special=True)


def _listed(
    config: _Config, listed: bytes | None, held: Mapping[str, _Held], named: _Named, where: str
) -> tuple[dict[str, tuple[_Token, int]], str]:
    """Return the tokens of the list that counts, with their ids and in the order of these, and the list's file."""
    given = config.added_tokens_decoder
    if given is not None:
        wrong = next((number for number in given if not _TOKEN_ID.fullmatch(number)), None)
        if wrong is not None:
            raise IngestError(
                f"{where}: {CONFIG}: added_tokens_decoder: {quoted(wrong)} is no token id, expected a number"
            )
        ordered = sorted((int(number), token) for number, token in given.items())
        return {token.content: (token, number) for number, token in ordered}, CONFIG
    if listed is None:
        return {}, FILE
    ids = decode(listed, dict[str, int], f"{where}: {FILE}", max_values=MAX_MANY_VALUES)
    taken = {token.id for token in held.values()}
    others = sorted((number, text) for text, number in ids.items() if text not in held and number not in taken)
    special = {token.content for name, token in named.names if name in STANDARD} | named.early
    return {text: (_Token(content=text, special=text in special), number) for number, text in others}, FILE


def _is_of_llama_2(config: _Config, parts: _Document) -> bool:
    """Whether the class of the tokenizer is LlamaTokenizer, and tokenizer.json puts U+2581 before what is normalized.

    Tokens that are normalized are found only behind a space then. transformers makes this class anew, without a
    normalizer, and finds them wherever they are, as the sentencepiece tokenizer did that such models were trained with.
    """
    named = str(config.tokenizer_class).removesuffix("Fast") == "LlamaTokenizer"
    return named and b'"Prepend"' in msgspec.json.encode(parts.normalizer)


def _special(token: _Token) -> _Token:
    """Return a token as a special one: texts leave it out. Where it is found stays as it is."""
    return replace(token, special=True, normalized=token.flags()["normalized"])


def _vocabulary(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the words of the model with their ids; Unigram's are a list of [word, score]."""
    model = document.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(words, dict):
        return {text: number for text, number in words.items() if isinstance(number, int)}
    if isinstance(words, list):
        return {entry[0]: number for number, entry in enumerate(words) if isinstance(entry, list) and entry}
    return {}
