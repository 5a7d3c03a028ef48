"""Text piece by piece while tokens arrive.

A token is not a piece of text: a character may be spread over several tokens, and a token's text may depend
on the one before (a sentencepiece decoder drops the first token's leading space). So a short window of tokens
is decoded, and the piece is what the window's text gained. A window that ends with U+FFFD may end inside a
character and is held back.

Tokenizers with byte fallback make U+FFFD of every byte of a run of byte tokens as soon as one of them is no UTF-8, of
whole characters before it, too. Those have been shown by then: a run may go on for a whole text, so waiting for its
end would stop the stream. They stay, and each byte is shown once.
"""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
# A character is at most four bytes, so at most four tokens; a much longer tail is bytes that are not UTF-8.
_MAX_CHARACTER_TOKENS = 4
_MAX_HELD_TOKENS = 16
_CONTEXT_TOKENS = 6
_MAX_WINDOW_TOKENS = 32


class Decoder(Protocol):
    """What turns ids into text: a Tokenizer."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`."""
        ...


class NoText:
    """Stands in for the tokenizer of an artifact that has none: tokens without text."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """No text."""
        return ""


class Detokenizer:
    """Turns tokens into text such that the pieces, joined, are the text of all of them.

    `context` are tokens that stand before the first (a prompt that the text continues): their last few let
    the first piece keep its leading space. Without them the text begins a new one.
    """

    def __init__(self, decoder: Decoder, *, context: Sequence[int] = (), skip_special_tokens: bool = True) -> None:
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._window, self._shown_text = self._last_words(context)
        self._shown_tokens = len(self._window)

    def add(self, token_id: int) -> str:
        """The text that is certain now that `token_id` came; often one word, sometimes nothing."""
        self._window.append(token_id)
        text = self._decode(self._window)
        held = len(self._window) - self._shown_tokens
        if not text.endswith(REPLACEMENT):
            return self._show(text)
        return self._show_whole_characters(text) if held >= _MAX_HELD_TOKENS else ""

    def finish(self) -> str:
        """The text held back, at the end of the tokens; an unfinished character becomes U+FFFD."""
        return self._show(self._decode(self._window))

    def _show(self, text: str) -> str:
        piece = self._beyond_shown(text)
        # The tokens just shown become the context of the next, unless they have no text to give context with.
        start = self._window[self._shown_tokens :]
        start_text = self._decode(start)
        if start_text:
            self._window = start
            self._shown_text = start_text
        else:
            self._window = self._window[-_MAX_WINDOW_TOKENS:]
            self._shown_text = self._decode(self._window)
        self._shown_tokens = len(self._window)
        return piece

    def _show_whole_characters(self, text: str) -> str:
        """The text before a last character that the next token may complete, as where each token of many ends inside
        one; the tokens that it may begin in stay."""
        window = self._window[-_MAX_CHARACTER_TOKENS:]
        tail = self._decode(window)
        if tail.endswith(REPLACEMENT):  # else what made it one is before the window
            text, tail = text.removesuffix(REPLACEMENT), tail.removesuffix(REPLACEMENT)
        piece = self._beyond_shown(text)
        self._window, self._shown_text = window, tail
        self._shown_tokens = len(self._window)
        return piece

    def _beyond_shown(self, text: str) -> str:
        common = _common_length(self._shown_text, text)
        shown, rest = self._shown_text[common:], text[common:]
        if shown.startswith(REPLACEMENT) or (shown and rest.startswith(REPLACEMENT)):
            return _behind(rest, sum(map(_size_bytes, shown)))
        return rest

    def _last_words(self, context: Sequence[int]) -> tuple[list[int], str]:
        """The last few tokens of `context`, beginning with a whole character if possible, and their text."""
        for count in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _MAX_CHARACTER_TOKENS):
            window = list(context[-count:])
            text = self._decode(window)
            if REPLACEMENT not in text:
                break
        return window, text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(ids, skip_special_tokens=self._skip_special_tokens) if ids else ""


def _size_bytes(character: str) -> int:
    """Bytes that a character stands for, where U+FFFD stands for one."""
    return 1 if character == REPLACEMENT else len(character.encode())


def _behind(text: str, size_bytes: int) -> str:
    """What `text` has behind so many bytes; U+FFFD for each byte of a character of which some were shown as such."""
    for index, character in enumerate(text):
        if size_bytes <= 0:
            return REPLACEMENT * -size_bytes + text[index:]
        size_bytes -= _size_bytes(character)
    return REPLACEMENT * -size_bytes


def _common_length(left: str, right: str) -> int:
    """The length of the longest common prefix."""
    if right.startswith(left):
        return len(left)
    length = min(len(left), len(right))
    return next((index for index in range(length) if left[index] != right[index]), length)
