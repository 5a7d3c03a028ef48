"""Text to token ids and back, from the artifact's own tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from pyc.runtime.errors import ArtifactError, RunError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Backend


class _AddedToken(msgspec.Struct, frozen=True):
    content: str


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _Config(msgspec.Struct, frozen=True):
    """The fields of tokenizer_config.json that a runtime needs; the others are for training tools."""

    bos_token: str | _AddedToken | None = None
    eos_token: str | _AddedToken | None = None
    pad_token: str | _AddedToken | None = None
    unk_token: str | _AddedToken | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    chat_template: str | list[_NamedTemplate] | None = None


class Tokenizer:
    """A model's tokenizer. Truncation and padding written into tokenizer.json are switched off.

    `special_tokens` maps bos_token, eos_token, pad_token and unk_token to their text, where the model has
    them. `chat_template` is the one in tokenizer_config.json, if any. tokenizer.json is parsed at first use, which then
    raises ArtifactError when it is not what it should be: who brings token ids does not wait for it.
    """

    def __init__(self, tokenizer_json: bytes, config_json: bytes | None = None) -> None:
        """Raises ArtifactError when `config_json` is not what it should be."""
        self._document = tokenizer_json
        try:
            config = msgspec.json.decode(config_json or b"{}", type=_Config)
        except msgspec.DecodeError as error:
            raise ArtifactError(f"tokenizer_config.json: {error}; build the artifact again") from error
        named = {
            "bos_token": config.bos_token,
            "eos_token": config.eos_token,
            "pad_token": config.pad_token,
            "unk_token": config.unk_token,
        }
        self.special_tokens = {
            name: token.content if isinstance(token, _AddedToken) else token
            for name, token in named.items()
            if token is not None
        }
        self.chat_template = _default_template(config.chat_template)
        self._prepend = self.special_tokens.get("bos_token") if config.add_bos_token else None
        self._append = self.special_tokens.get("eos_token") if config.add_eos_token else None

    @cached_property
    def _backend(self) -> _Backend:
        from tokenizers import Tokenizer as Backend

        try:
            backend = Backend.from_buffer(self._document)
        except Exception as error:  # the Rust side raises plain Exception
            raise ArtifactError(f"tokenizer.json: {error}; build the artifact again") from error
        backend.no_truncation()
        backend.no_padding()
        return backend

    @property
    def backend(self) -> _Backend:
        """The `tokenizers.Tokenizer` underneath."""
        return self._backend

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary, added tokens included (a model's own vocab_size may be padded beyond)."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def token_id(self, token: str) -> int | None:
        """The id of a token as it is spelt in the vocabulary, or None."""
        return self._backend.token_to_id(token)

    def token(self, token_id: int) -> str | None:
        """How the vocabulary spells the token, or None for an id it does not have."""
        return self._backend.id_to_token(token_id)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`. Raises RunError for text that is not valid Unicode (lone surrogates)."""
        _check_text(text)
        ids = list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        return self._with_flagged_ends(ids) if add_special_tokens else ids

    def encode_batch(self, texts: Sequence[str], *, max_tokens: int) -> list[list[int]]:
        """The ids of each text with special tokens, each cut so that at most `max_tokens` are left."""
        for text in texts:
            _check_text(text)
        self._backend.enable_truncation(max_length=max_tokens)
        try:
            encodings = self._backend.encode_batch(list(texts))
        finally:
            self._backend.no_truncation()
        return [list(encoding.ids) for encoding in encodings]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def _with_flagged_ends(self, ids: list[int]) -> list[int]:
        # add_bos_token and add_eos_token ask for what most, but not all, tokenizer.json do themselves.
        first = self._backend.token_to_id(self._prepend) if self._prepend is not None else None
        last = self._backend.token_to_id(self._append) if self._append is not None else None
        if first is not None and ids[:1] != [first]:
            ids.insert(0, first)
        if last is not None and ids[-1:] != [last]:
            ids.append(last)
        return ids


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RunError(f"text: character {error.start} is a lone surrogate, not Unicode text") from error


def _default_template(template: str | list[_NamedTemplate] | None) -> str | None:
    if not isinstance(template, list):
        return template
    return next((entry.template for entry in template if entry.name == "default"), None)
