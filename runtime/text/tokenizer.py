"""Text to token ids and back, from the artifact's own tokenizer.json and tokenizer_config.json.

The library that does it is foreign code: its panics are errors here (foreign_code.py), what a tokenizer.json may ask
of it is checked before (tokenizer_rules.py), and so is how long a text is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from pyc.runtime.arguments import checked_text, first_of, integers, is_sequence, shown
from pyc.runtime.arguments import texts as checked_texts
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.host.made_once import made_once
from pyc.runtime.text import line_cuts
from pyc.runtime.text.chat.template_files import DEFAULT
from pyc.runtime.text.foreign_code import contained
from pyc.runtime.text.special_tokens import named_tokens, special_tokens

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as _Backend

    from pyc.runtime.text.authored_text import AuthoredText
    from pyc.runtime.text.control_tokens import ControlTokens
    from pyc.runtime.text.text_cut import TextCut

MAX_TEXT_CHARACTERS = 1 << 20
CHARACTERS_A_TOKEN = 256
MAX_IDS = 1 << 24
"""Token ids that `decode` takes at once."""
PART_CHARACTERS = 1 << 18
"""Of a long text that is encoded in parts: the library takes hundreds of bytes for each character of one."""
PORTION, TEXT_COST = 1 << 19, 32
"""Characters of texts that are encoded at once, and what a text costs beside its characters."""


def longest_text(tokens: int) -> int:
    """Characters that a text may have where `tokens` are wanted of it: 256 for each, and at least 1 Mi."""
    return max(MAX_TEXT_CHARACTERS, CHARACTERS_A_TOKEN * tokens)


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _Config(msgspec.Struct, frozen=True):
    """What a runtime needs of tokenizer_config.json beside special_tokens.py; other fields are for training tools.

    add_bos_token and add_eos_token are among the others: transformers 5 drops both beside a tokenizer.json, whose
    post-processor alone says which ids are added.
    """

    chat_template: str | list[_NamedTemplate] | dict[str, str] | None = None


class Tokenizer:
    """A model's tokenizer. Truncation, padding and dropout written into tokenizer.json are switched off.

    `chat_templates` are those in tokenizer_config.json, by name. tokenizer.json is parsed at first use, which then
    raises ArtifactError when it is not what it should be: who brings token ids does not wait for it. Nothing changes it
    from then on: threads and signal handlers encode with the same one.
    """

    def __init__(
        self,
        tokenizer_json: bytes,
        config_json: bytes | None = None,
        *,
        map_json: bytes | None = None,
        model_json: bytes | None = None,
        cut: TextCut | None = None,
    ) -> None:
        """`map_json` is special_tokens_map.json, `model_json` the model's config.json: with `config_json` they say what
        special tokens are called. `cut` says which end of texts `encode_batch` cuts. Raise ArtifactError when
        `config_json` or `map_json` is not what it should be."""
        self._document = tokenizer_json
        self.cut = cut
        self._decoding = contained(RunError, "token ids: the tokenizer failed")
        try:
            config = msgspec.json.decode(config_json or b"{}", type=_Config)
        except ValueError as error:  # UnicodeDecodeError, too
            raise ArtifactError(f"tokenizer_config.json: {error}; build the artifact again") from error
        self._config, self._model = config_json, model_json
        self._named = named_tokens(config_json, map_json)
        self.chat_templates = _templates(config.chat_template)

    @made_once
    def special_tokens(self) -> dict[str, str]:
        """The text of bos_token, eos_token and the others that the model has, by name. Raises ArtifactError."""
        return special_tokens(self._named, self._document, self._config, self._model)

    @made_once
    def _backend(self) -> _Backend:
        return _parse(self._document)

    @made_once
    def _control_tokens(self) -> ControlTokens:
        from pyc.runtime.text.control_tokens import ControlTokens

        return ControlTokens(self._backend, self._document, _parse)

    @property
    def added_tokens(self) -> int:
        """How many special tokens the post-processor adds to a text."""
        return self._backend.num_special_tokens_to_add(False)

    @property
    def backend(self) -> _Backend:
        """The `tokenizers.Tokenizer` underneath."""
        return self._backend

    def special_ids(self, texts: Sequence[str]) -> frozenset[int]:
        """The ids of those texts that are special tokens, such as `<|im_end|>`, which `decode` leaves out."""
        return frozenset(self._special_ids[text] for text in texts if text in self._special_ids)

    @made_once
    def _special_ids(self) -> dict[str, int]:
        found = self._backend.get_added_tokens_decoder().items()
        return {token.content: token_id for token_id, token in found if token.special}

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, added tokens included (a model's own vocab_size may be padded beyond)."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def token_id(self, token: str) -> int | None:
        """The id of a token as it is spelt in the vocabulary, or None. Raises RunError for what is not text."""
        checked_text(token, "token")
        with contained(RunError, "token"):
            return self._backend.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells the token, or None for an id it does not have."""
        (number,) = integers([token_id], "token_id")
        return self._backend.id_to_token(number) if 0 <= number < 1 << 32 else None

    def encode(self, text: str, *, add_special_tokens: bool = True, max_characters: int | None = None) -> list[int]:
        """The ids of `text`, in which control tokens such as `<|im_end|>` are recognised wherever they stand.

        Raises RunError for what is not Unicode text (lone surrogates), and for more than `max_characters`.
        """
        checked_text(text, "text")
        _check_length(text, max_characters)
        with contained(RunError, "text: the tokenizer failed"):
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_parts(self, text: str, part_characters: int = PART_CHARACTERS) -> Iterator[list[int]]:
        """The ids of `text`, as `encode` has them, a list a part of about `part_characters`: for a text of any length.

        They are one list where nothing says that the parts of a text have the ids that they have in the whole.
        Raises RunError as `encode` does.
        """
        checked_text(text, "text")
        if len(text) <= part_characters or not self._may_be_cut:
            yield self.encode(text)
            return
        with contained(RunError, "text: the tokenizer failed"):
            plain = _parse(self._document)
            plain.post_processor = None  # which moves offsets
            before, behind = line_cuts.around(self._backend)
        yield before
        count = len(before)
        for begin, end in line_cuts.parts_of(text, part_characters):
            try:
                with contained(RunError, "text: the tokenizer failed"):
                    ids = line_cuts.encode_part(plain, text, begin, end)
            except RunError:  # it may fail on a text that begins within white space, and not on the whole
                yield self.encode(text)[count:]
                return
            yield ids
            count += len(ids)
        yield behind

    @made_once
    def _may_be_cut(self) -> bool:
        with contained(RunError, "text: the tokenizer failed"):
            return line_cuts.may_be_cut(self._document, self._backend)

    def encode_chat(self, text: AuthoredText, *, max_characters: int | None = None) -> list[int]:
        """The ids of what a ChatTemplate rendered; control tokens that a message contains are plain text in it.

        Nothing is added. Raises RunError as `encode` does.
        """
        checked_text(text, "chat")
        _check_length(text, max_characters)
        with contained(RunError, "chat: the tokenizer failed"):
            return self._control_tokens.encode(text)

    def encode_batch(self, texts: Sequence[str], *, max_tokens: int) -> list[list[int]]:
        """The ids of each text with special tokens, each cut so that at most `max_tokens` are left.

        A text loses its end, or its beginning where `cut` says so. Only `longest_text(max_tokens)` characters from the
        other end on are read.
        """
        keeps_end = self.cut is not None and self.cut.direction == "Left"
        most, direction = longest_text(max_tokens), "left" if keeps_end else "right"
        kept = slice(-most, None) if keeps_end else slice(most)
        given = [text[kept] for text in checked_texts(texts, "texts")]
        with contained(RunError, "texts: the tokenizer failed"):
            backend = self._backend
            room = max(max_tokens - self.added_tokens, 0)
            ids: list[list[int]] = []
            for encoding in _encodings(backend, given, add_special_tokens=False):
                # not `enable_truncation`, which would cut what others encode meanwhile
                encoding.truncate(room, direction=direction)
                ids.append(list(backend.post_process(encoding).ids))
        return ids

    def count_longer(self, texts: Sequence[str], max_tokens: int) -> int:
        """How many of `texts` `encode_batch` would cut."""
        most = longest_text(max_tokens)
        given = [text for text in checked_texts(texts, "texts") if len(text) <= most]
        with contained(RunError, "texts: the tokenizer failed"):
            encodings = _encodings(self._backend, given, add_special_tokens=True)
            longer = sum(len(encoding) > max_tokens for encoding in encodings)
        return len(texts) - len(given) + longer

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Raises RunError for what are not ids."""
        if not is_sequence(ids):
            raise RunError(f"token ids: got {shown(ids)}, expected a sequence of integers")
        numbers = first_of(ids, MAX_IDS)
        if len(numbers) > MAX_IDS:
            raise RunError(f"token ids: got more than {MAX_IDS}, expected at most as many; decode them in parts")
        if bool in map(type, numbers):  # which the library takes for integers
            integers(numbers, "token ids", high=(1 << 32) - 1)
        try:
            with self._decoding:
                return self._backend.decode(numbers, skip_special_tokens=skip_special_tokens)
        except RunError:
            integers(numbers, "token ids", high=(1 << 32) - 1)  # says which is wrong, if one is
            raise


def _encodings(backend: _Backend, texts: list[str], *, add_special_tokens: bool) -> Iterator[Encoding]:
    """What the library makes of each text, on its threads if there may be such: it panics where it finds out. It has a
    portion at a time, since no interruption is obeyed within."""
    if not _has_threads():
        yield from (backend.encode(text, add_special_tokens=add_special_tokens) for text in texts)
        return
    portion: list[str] = []
    room = PORTION
    for text in texts:
        portion.append(text)
        room -= len(text) + TEXT_COST
        if room <= 0:
            yield from backend.encode_batch(portion, add_special_tokens=add_special_tokens)
            portion, room = [], PORTION
    yield from backend.encode_batch(portion, add_special_tokens=add_special_tokens)


@lru_cache(maxsize=1)
def _has_threads() -> bool:
    from pyc.runtime.host.threads import may_start_threads

    return may_start_threads(os.cpu_count() or 1)


def _parse(document: bytes) -> _Backend:
    """The library's tokenizer. Raises ArtifactError."""
    from tokenizers import Tokenizer as Backend

    from pyc.runtime.text.tokenizer_rules import TokenizerRuleError, check_tokenizer_json

    try:
        check_tokenizer_json(document)
    except TokenizerRuleError as fault:
        raise ArtifactError(f"tokenizer.json: {fault}; build the artifact again") from fault
    with contained(ArtifactError, "tokenizer.json: it cannot be used; build the artifact again"):
        backend = Backend.from_buffer(document)
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None) is not None:
            backend.model.dropout = None
    return backend


def _check_length(text: str, most: int | None) -> None:
    if most is not None and len(text) > most:
        raise RunError(
            f"prompt: its text has {len(text)} characters, expected at most {most} for this model's context; shorten it"
        )


def _templates(configured: str | list[_NamedTemplate] | dict[str, str] | None) -> dict[str, str]:
    if isinstance(configured, list):
        return {entry.name: entry.template for entry in configured}
    return {DEFAULT: configured} if isinstance(configured, str) else configured or {}
