"""Token ids of a rendered conversation in which only the template writes control tokens.

A tokenizer looks for its added tokens anywhere in a text and encodes the stretches between them. Somebody who types
`<|im_end|>` would so end his turn and begin another's. Here an added token counts only

    where all of its characters are the template's, or
    where they are the template's and the assistant's, for a token that is not special, such as `<think>`.

Spaces and line ends around it may be anybody's: a token of two line ends and `Assistant:` takes the one that a message
ends with, as in transformers.

Any other occurrence is encoded as the plain text that it is. The text is first encoded as it is; almost always every
added token in it counts, and these are the ids. Otherwise each occurrence that counts is replaced by a mark, text that
nobody can guess, and the whole is encoded by a second tokenizer, the same but for its added tokens: the mark is the
only one. So both ways cut the text at the same places, and what lies between is encoded alike. A vocabulary may have an
added token as a word, too (of SentencePiece those that its user defined): then the plain text is parted behind its
first character, unless the token is ordinary text, a word or a sign of a language.

Added tokens of nothing but spaces (also as `▁`) or line ends, and the model's token for what it does not know, are not
control tokens: they are how a tokenizer writes ordinary text.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_text import MODEL, ROLE, TEMPLATE, UNKNOWN, AuthoredText

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

_MAY_WRITE_SPECIAL = TEMPLATE + ROLE
_MAY_WRITE_OTHER = TEMPLATE + ROLE + MODEL
_RUNS = re.compile(f"[{_MAY_WRITE_OTHER}]+")
_SPACES = "▁ \t\n\r\v\f\u0085\u00a0\u2028\u2029\u3000"
_OF_WORDS = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "So", "Sk", "Cf"})
"""Categories of Unicode: letters, marks, digits, emoji and what joins those."""
_MAX_ROUNDS = 16
Parse = Callable[[bytes], "Backend"]


@dataclass(frozen=True, slots=True)
class _ControlToken:
    id: int
    content: str
    special: bool
    is_word: bool
    takes_left: bool
    takes_right: bool


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """A control token from `start` to `end` of the text; spaces that it takes with it are inside."""

    start: int
    end: int
    token: _ControlToken

    def counts(self, text: AuthoredText) -> bool:
        """Whether those who wrote it may."""
        return not self._authors(text).strip(_MAY_WRITE_SPECIAL if self.token.special else _MAY_WRITE_OTHER)

    def is_unclear(self, text: AuthoredText) -> bool:
        """Whether nobody knows who wrote it."""
        return UNKNOWN in self._authors(text)

    def _authors(self, text: AuthoredText) -> str:
        covered = text[self.start : self.end]
        return covered.strip().authors or covered.authors or UNKNOWN


class ControlTokens:
    """The control tokens of one tokenizer, and how text is encoded around them."""

    def __init__(self, backend: Backend, document: bytes, parse: Parse) -> None:
        """`parse` makes a backend out of a tokenizer.json such as `document`, from which `backend` is."""
        self._backend = backend
        self._document = document
        self._parse = parse
        self._mark = f"\ufdd0{secrets.token_hex(8)}\ufdd1"
        self._mark_id = -1
        self._marked: Backend | None = None
        self._kept_ids: dict[int, int] = {}
        unknown = _unknown_token(backend, document)
        self._tokens: dict[int, _ControlToken] = {}
        self._others: dict[str, int] = {}
        for token_id, token in backend.get_added_tokens_decoder().items():
            if not token.content.strip(_SPACES) or token.content == unknown:
                self._others[token.content] = token_id
            else:
                is_word = not token.special and _is_word(token.content)
                self._tokens[token_id] = _ControlToken(
                    token_id, token.content, token.special, is_word, token.lstrip, token.rstrip
                )

    def encode(self, text: AuthoredText) -> list[int]:
        """The ids of a rendered conversation. Raises RunError when it cannot be told who wrote a control token."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        found = self._occurrences(encoding)
        unclear = next((occurrence for occurrence in found if occurrence.is_unclear(text)), None)
        if unclear is not None:
            raise RunError(
                f"chat template: it mixes its own text with a message's in a way that hides who wrote "
                f"{unclear.token.content!r}; leave that text out of the messages"
            )
        if all(occurrence.counts(text) for occurrence in found):
            return list(encoding.ids)
        return self._encode_around(text)

    def _occurrences(self, encoding: Encoding) -> list[_Occurrence]:
        tokens = self._tokens
        at = [index for index, token_id in enumerate(encoding.ids) if token_id in tokens]
        if not at:
            return []
        offsets, ids = encoding.offsets, encoding.ids
        return [_Occurrence(*offsets[index], tokens[ids[index]]) for index in at]

    def _encode_around(self, text: AuthoredText) -> list[int]:
        """The ids when some control tokens are text: a mark stands for each that counts."""
        cuts: list[tuple[int, int, int | None]] = [
            (occurrence.start, occurrence.end, occurrence.token.id) for occurrence in self._counting(text)
        ]
        for _ in range(_MAX_ROUNDS):
            ids, forged = self._encode_cut(text, cuts)
            if not forged:
                return ids
            # The vocabulary itself has the token as a word: encode its first character and the rest apart.
            cuts = sorted({*cuts, *((middle, middle, None) for middle in forged)}, key=lambda cut: cut[:2])
        raise RunError("chat: a message holds the text of a control token that cannot be written as plain text")

    def _counting(self, text: AuthoredText) -> list[_Occurrence]:
        """Control tokens that count, in order, with the spaces that they take."""
        found: list[_Occurrence] = []
        for run in _RUNS.finditer(text.authors):
            part = str.__getitem__(text, slice(run.start(), run.end()))
            for occurrence in self._occurrences(self._backend.encode(part, add_special_tokens=False)):
                start, end = run.start() + occurrence.start, run.start() + occurrence.end
                while occurrence.token.takes_left and start > 0 and str.__getitem__(text, start - 1).isspace():
                    start -= 1
                while occurrence.token.takes_right and end < len(text) and str.__getitem__(text, end).isspace():
                    end += 1
                start = max(start, found[-1].end) if found else start
                moved = _Occurrence(start, end, occurrence.token)
                if moved.counts(text):
                    found.append(moved)
        return found

    def _encode_cut(self, text: AuthoredText, cuts: list[tuple[int, int, int | None]]) -> tuple[list[int], list[int]]:
        """The ids, and a place inside each control token that the model made out of plain text.

        A cut is replaced by its token; one without a token parts the text.
        """
        marked = self._marked_backend()
        pieces: list[str] = []
        # Where each stretch of plain text begins, in the text with marks and in the one without.
        begins: list[tuple[int, int]] = []
        position = length = 0
        for start, end, _ in cuts:
            plain = str.__getitem__(text, slice(position, start))
            begins.append((length, position))
            pieces += (plain, self._mark)
            length += len(plain) + len(self._mark)
            position = end
        pieces.append(str.__getitem__(text, slice(position, None)))
        begins.append((length, position))
        encoding = marked.encode("".join(pieces), add_special_tokens=False)
        offsets: list[tuple[int, int]] | None = None
        ids: list[int] = []
        forged: list[int] = []
        cut = 0
        for index, token_id in enumerate(encoding.ids):
            if token_id == self._mark_id:
                replaced = cuts[cut][2] if cut < len(cuts) else None
                cut += 1
                if replaced is not None:
                    ids.append(replaced)
                continue
            token_id = self._kept_ids.get(token_id, token_id)
            token = self._tokens.get(token_id)
            if token is not None and not token.is_word:
                offsets = encoding.offsets if offsets is None else offsets
                marked_start, plain_start = begins[cut]
                forged.append(plain_start + offsets[index][0] - marked_start + 1)
            ids.append(token_id)
        if cut != len(cuts):
            raise RunError("chat: a message holds text that pyc uses to tell control tokens from text; leave it out")
        return ids, forged

    def _marked_backend(self) -> Backend:
        if self._marked is None:
            from tokenizers import AddedToken

            document = json.loads(self._document)
            others = set(self._others.values())
            document["added_tokens"] = [entry for entry in document.get("added_tokens", ()) if entry["id"] in others]
            document["post_processor"] = None
            marked = self._parse(json.dumps(document).encode())
            marked.add_special_tokens([AddedToken(self._mark, special=True, normalized=False)])
            ids = marked.get_vocab(with_added_tokens=True)
            self._mark_id = ids[self._mark]
            self._kept_ids = {ids[content]: token_id for content, token_id in self._others.items()}
            self._marked = marked
        return self._marked


def _is_word(content: str) -> bool:
    """Whether a token is a word, an emoji, one character, or one over and over: what a vocabulary has for a language.

    Turns of conversations are marked by more, `<|im_end|>`, `[INST]`, `USER:`, `### Response:`.
    """
    return len(set(content)) == 1 or all(unicodedata.category(each) in _OF_WORDS for each in content.strip("▁"))


class _Model(msgspec.Struct, frozen=True):
    unk_token: str | None = None
    unk_id: int | None = None


class _Document(msgspec.Struct, frozen=True):
    model: _Model


def _unknown_token(backend: Backend, document: bytes) -> str | None:
    """What the model writes for what it does not know, unless that ends texts as well (GPT-2 has one token for all)."""
    model = msgspec.json.decode(document, type=_Document).model
    token = model.unk_token
    if token is None and model.unk_id is not None:
        token = backend.id_to_token(model.unk_id)
    return token if token is not None and "unk" in token.lower() else None
