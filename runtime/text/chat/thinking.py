"""What a model says to itself before it answers: text between <think> and </think> at the start of an answer.

Some templates open the tag in the prompt, so that the answer begins inside. An answer that mentions the tags later on
is an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyc.runtime.errors import RunError

if TYPE_CHECKING:
    from pyc.runtime.text.chat.template import ChatTemplate

SWITCH = "enable_thinking"
"""The variable of chat templates that says whether to think."""
OPENING, CLOSING = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown, and whether it is thinking (the tags count as that)."""

    text: str
    is_thinking: bool


def opens_thinking(prompt: str) -> bool:
    """Whether a prompt's text ends inside an open <think>."""
    return prompt.rstrip().endswith(OPENING)


def has_switch(template: ChatTemplate) -> bool:
    """Whether a template heeds enable_thinking, tried with a message of one letter."""
    message = {"role": "user", "content": "x"}
    try:
        on, off = (template.render([message], variables={SWITCH: value}) for value in (True, False))
    except RunError:  # it wants more than a letter
        return True
    return on != off


class ThinkingSplitter:
    """Tells thinking from answer while text arrives; a text that may turn out to be a tag is held back."""

    def __init__(self, *, is_open: bool = False) -> None:
        """`is_open`: the prompt has opened the tag."""
        self._is_thinking = is_open
        self._is_undecided = not is_open
        self._held = ""

    def add(self, text: str) -> list[Piece]:
        """The pieces that `text` sets free."""
        self._held += text
        if self._is_undecided:
            start = self._held.lstrip()
            if start.startswith(OPENING):
                self._is_thinking = True
            elif OPENING.startswith(start):
                return []
            self._is_undecided = False
        if not self._is_thinking:
            return self._release(len(self._held))
        end = self._held.find(CLOSING)
        if end >= 0:
            pieces = self._release(end + len(CLOSING))
            self._is_thinking = False
            return pieces + self._release(len(self._held))
        kept = next((size for size in range(len(CLOSING) - 1, 0, -1) if self._held.endswith(CLOSING[:size])), 0)
        return self._release(len(self._held) - kept)

    def finish(self) -> list[Piece]:
        """What was held back, when no more text comes."""
        return self._release(len(self._held))

    def _release(self, size: int) -> list[Piece]:
        text, self._held = self._held[:size], self._held[size:]
        return [Piece(text, self._is_thinking)] if text else []
