"""A conversation with a model: what was said, and how much of it the model still sees.

A context holds a number of tokens. When history and question no longer fit it, whole turns are left out, the oldest
first; the system text stays, and nothing is lost for `as_json`. Turns are left out several at a time, until a
quarter of the context is free: what stays is the prefix of many questions more, and its cached tokens are used again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from pyc.runtime.errors import RunError
from pyc.runtime.host.recursion import refuse_deep_caller
from pyc.runtime.text.chat.template import JsonValue
from pyc.runtime.text.tokenizer import longest_text

Cut = Literal["interrupted", "max_tokens", "context"]
ChatMessage = dict[str, JsonValue]

FREE_SHARE = 4
"""A context is free by one part in this many after turns were left out."""
AROUND, BEFORE = 64, 8192
"""Characters that a template may put around a message, and in front of them all."""


def exceeds_a_text(messages: Sequence[ChatMessage], context: int) -> bool:
    """Whether a prompt of these messages is longer than what is read as one text, and so than the context."""
    return sum(len(str(each["content"])) + AROUND for each in messages) > longest_text(context) - BEFORE


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its answer; `cut` says what ended the answer before the model did, if anything."""

    question: str
    answer: str
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question behind the turns that fit the context with it, from `first` on: as messages, and their tokens;
    `left_out` turns are not among them that the model has seen until now."""

    question: str
    first: int
    messages: list[ChatMessage]
    tokens: int
    left_out: int


class _SavedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["system", "user", "assistant"]
    content: str
    cut: Cut | None = None


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    messages: tuple[_SavedMessage, ...]


class Conversation:
    """Turns, an optional system text, and the index of the first turn that the model still sees."""

    def __init__(self, system: str | None = None, turns: Sequence[Turn] = ()) -> None:
        self.system = system
        self.turns = list(turns)
        self.first_seen = 0
        self._left_out_for: list[tuple[int, int]] = []  # the question's place among the turns, and first_seen before it

    def fit(
        self, question: str, count_tokens: Callable[[Sequence[ChatMessage]], int], *, context: int, answer_tokens: int
    ) -> Prompt:
        """The prompt that asks `question`, with as many of the latest turns as leave room for an answer.

        `count_tokens` counts the tokens of a prompt, `context` is what prompt and answer may have together,
        `answer_tokens` what the answer should have at least. Nothing changes until `keep`. Raises RunError when the
        question does not fit the context on its own.
        """
        counts: dict[int, int] = {}

        def tokens_from(first: int) -> int:
            if first not in counts:
                messages = self.messages(question, first)
                # The question alone is refused by `count_tokens`, and the error says so.
                is_long = first < len(self.turns) and exceeds_a_text(messages, context)
                counts[first] = context + 1 if is_long else count_tokens(messages)
            return counts[first]

        first = self.first_seen
        if tokens_from(first) > context - answer_tokens:
            room = context - max(answer_tokens, context // FREE_SHARE)
            starts = range(first, len(self.turns))
            first += bisect_left(starts, True, key=lambda start: tokens_from(start) <= room)
        tokens = tokens_from(first)
        if tokens >= context:
            raise RunError(
                f"message: it takes {tokens} tokens{' with the system text' if self.system else ''}, expected at most "
                f"{context - 1} in this model's context of {context}; shorten it"
            )
        return Prompt(question, first, self.messages(question, first), tokens, first - self.first_seen)

    def keep(self, prompt: Prompt, answer: str, cut: Cut | None = None) -> None:
        """Add the question of a prompt and its answer; the turns that the prompt left out are no longer seen."""
        if prompt.first != self.first_seen:
            self._left_out_for.append((len(self.turns), self.first_seen))
            self.first_seen = prompt.first
        self.turns.append(Turn(prompt.question, answer, cut))

    def messages(self, question: str | None = None, first: int | None = None) -> list[ChatMessage]:
        """Messages for a chat template: the system text, the turns from `first` (default: those still seen), and
        `question`."""
        messages: list[ChatMessage] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns[self.first_seen if first is None else first :]:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        if question is not None:
            messages.append({"role": "user", "content": question})
        return messages

    def undo(self) -> Turn | None:
        """Take the last turn back; None when there is none. Turns that were left out for it are seen again."""
        turn = self.turns.pop() if self.turns else None
        while self._left_out_for and self._left_out_for[-1][0] >= len(self.turns):
            self.first_seen = self._left_out_for.pop()[1]
        return turn

    def reset(self) -> None:
        """Forget every turn; the system text stays."""
        self.turns.clear()
        self.first_seen = 0
        self._left_out_for.clear()

    # --- files

    def as_json(self) -> str:
        """All that was said as {"messages": [{"role", "content"}]}; an answer that was cut has a "cut"."""
        messages = [] if self.system is None else [_SavedMessage("system", self.system)]
        for turn in self.turns:
            messages.append(_SavedMessage("user", turn.question))
            messages.append(_SavedMessage("assistant", turn.answer, turn.cut))
        return msgspec.json.format(msgspec.json.encode(_Saved(tuple(messages))), indent=2).decode() + "\n"

    def as_markdown(self) -> str:
        """All that was said, for a reader's eyes."""
        parts = [] if self.system is None else [f"## System\n\n{self.system}\n"]
        for turn in self.turns:
            note = "" if turn.cut is None else f"\n*cut: {turn.cut}*\n"
            parts.append(f"## User\n\n{turn.question}\n\n## Assistant\n\n{turn.answer}\n{note}")
        return "\n".join(parts)

    @classmethod
    def from_json(cls, document: bytes) -> Conversation:
        """The conversation that `as_json` wrote. Raises RunError for anything else: a system message may come first,
        then user and assistant take turns."""
        try:
            messages = list(msgspec.json.decode(document, type=_Saved).messages)
        except (ValueError, RecursionError) as error:
            refuse_deep_caller(error)
            raise RunError(
                f'conversation: {error}; expected {{"messages": [{{"role": ..., "content": ...}}]}}'
            ) from error
        system = messages.pop(0).content if messages and messages[0].role == "system" else None
        turns = []
        for index in range(0, len(messages), 2):
            pair = messages[index : index + 2]
            roles = tuple(message.role for message in pair)
            if roles != ("user", "assistant"):
                raise RunError(
                    f"conversation: turn {index // 2 + 1} has the roles {', '.join(roles)}; expected user, assistant"
                )
            turns.append(Turn(pair[0].content, pair[1].content, pair[1].cut))
        return cls(system, turns)
