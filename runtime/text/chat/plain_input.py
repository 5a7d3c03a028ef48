"""What a caller says to a model, as data for a chat template.

Messages, tools and variables are copied into plain dicts, lists, text and numbers, which have no surprising methods,
and each text gets its author (authored_text.py). What is not made of JSON types is refused with its place:

    messages[1].content: got int64, expected text, a number, true, false, null, a list or a mapping
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pyc.runtime.arguments import checked_text, kind_of
from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_text import CALLER, MODEL, ROLE, AuthoredText
from pyc.runtime.text.printable import printable

MAX_DEPTH = 48
MAX_VALUES = 1_000_000

KNOWN_ROLES = frozenset(
    [
        "assistant", "context", "developer", "documents", "environment", "function", "ipython", "model",
        "observation", "system", "tool", "tool_call", "tool_response", "tool_result", "user",
    ]
)
"""Roles that templates build control tokens of (`'<|' + message.role + '|>'`); another role is a caller's text."""

_SAID_BY_MODEL = frozenset(["content", "reasoning", "reasoning_content", "thinking"])
_ASSISTANTS = ("assistant", "model")
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that a message's reasoning comes under; the first that it has is what it says."""


def plain_messages(messages: object) -> list[dict[str, object]]:
    """The conversation. Raises RunError when it is not a list of mappings with JSON values."""
    copier = _Copier()
    return [copier.message(message, f"messages[{index}]") for index, message in enumerate(_list("messages", messages))]


_GIVEN_ELSEWHERE = {
    "messages": "the conversation is the prompt; leave it out",
    "tools": "give them as `tools`",
    "add_generation_prompt": "an answer is always begun; leave it out",
}
"""Names that a template has, and how one gives what they stand for."""


def plain_tools(tools: object) -> list[dict[str, object]] | None:
    """The tools' schemas, or None. Raises RunError when they are not a list of mappings with JSON values."""
    if tools is None:
        return None
    copier = _Copier()
    return [copier.mapping(tool, f"tools[{index}]") for index, tool in enumerate(_list("tools", tools))]


def plain_variables(variables: object) -> dict[str, object]:
    """Further names for the template. Raises RunError when they are not a mapping with JSON values, and for names whose
    values come from elsewhere, but for null."""
    found = _Copier().mapping({} if variables is None else variables, "chat_variables")
    for name, remedy in _GIVEN_ELSEWHERE.items():
        if found.get(name) is not None:
            raise RunError(f"chat_variables.{name}: {remedy}")
    return found


def _list(name: str, value: object) -> Sequence[object]:
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Sequence):
        raise RunError(f"{name}: got {kind_of(value)}, expected a list of mappings")
    return value


class _Copier:
    """One copy: counts values, since a list that holds another twice is small and its copy is not."""

    def __init__(self) -> None:
        self._values = 0

    def message(self, message: object, place: str) -> dict[str, object]:
        """A message without its keys that are null, as in transformers; what an assistant says is the model's."""
        copy = {name: value for name, value in self.mapping(message, place).items() if value is not None}
        role = copy.get("role")
        if isinstance(role, str) and role in KNOWN_ROLES:
            copy["role"] = AuthoredText(role, ROLE)
        if role in _ASSISTANTS:
            for name in _SAID_BY_MODEL & copy.keys():
                copy[name] = _said_by_model(copy[name])
        return _with_reasoning(copy)

    def mapping(self, value: object, place: str, depth: int = 0) -> dict[str, object]:
        """A mapping with text for names."""
        if not isinstance(value, Mapping):
            raise RunError(f"{place}: got {kind_of(value)}, expected a mapping")
        copy: dict[str, object] = {}
        for name, member in value.items():
            if not isinstance(name, str):
                raise RunError(f"{place}: the name {name!r:.40} is {kind_of(name)}, expected text")
            copy[self._text(name, place)] = self.value(member, f"{place}.{printable(name[:80])}", depth + 1)
        return copy

    def value(self, value: object, place: str, depth: int = 0) -> object:
        """Any JSON value."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise RunError(f"{place[:200]}: more than {MAX_VALUES} values; a list may hold itself several times")
        if depth > MAX_DEPTH:
            raise RunError(f"{place[:200]}: nested more than {MAX_DEPTH} deep; it may contain itself")
        if isinstance(value, str):
            return self._text(value, place)
        if value is None or type(value) in (int, bool):
            return value
        if type(value) is float:
            if not math.isfinite(value):
                raise RunError(f"{place}: got {value}, expected a finite number, which is what JSON has")
            return value
        if isinstance(value, Mapping):
            return self.mapping(value, place, depth)
        if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
            return [self.value(member, f"{place}[{index}]", depth + 1) for index, member in enumerate(value)]
        raise RunError(
            f"{place}: got {kind_of(value)}, expected text, a number, true, false, null, a list or a mapping "
            "(the JSON types)"
        )

    def _text(self, text: str, place: str) -> AuthoredText:
        return AuthoredText(checked_text(str.__str__(text), place), CALLER)


def _with_reasoning(message: dict[str, object]) -> dict[str, object]:
    """The message with its reasoning under the names that templates read, as transformers 5 passes it."""
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _said_by_model(value: object) -> object:
    if isinstance(value, str):
        return AuthoredText(value, MODEL)
    if isinstance(value, list):
        return [_said_by_model(member) for member in value]
    if isinstance(value, dict):
        return {name: _said_by_model(member) for name, member in value.items()}
    return value
