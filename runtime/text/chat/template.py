"""Conversations to prompts, by the model's own chat template.

A template comes with a checkpoint, so it is untrusted code. It is rendered as transformers does (trim_blocks,
lstrip_blocks, loop controls, the same globals), in a sandbox without access to Python objects and with bounds
on time, memory and output (chat_limits.py). Each refusal is a RunError.

What comes out knows who wrote it (authored_text.py), so that `Tokenizer.encode_chat` takes only what the template
wrote for control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

from pyc.runtime.arguments import checked_text, flag, kind_of
from pyc.runtime.errors import RunError
from pyc.runtime.host.recursion import refuse_deep_caller
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.host.turns import Turns
from pyc.runtime.text.printable import printable

if TYPE_CHECKING:
    from pyc.runtime.text.authored_text import AuthoredText

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]

MAX_TEMPLATE_CHARACTERS = 1 << 17
MAX_DATE_FORMAT_CHARACTERS = 128

_PIECES_AT_ONCE = 4096
"""That are joined, since a piece of one character takes a hundred bytes."""


class ChatTemplate:
    """A compiled chat template. Safe for use by several threads, one rendering at a time."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """`special_tokens` are variables such as bos_token. Raises RunError when the template is not
        acceptable."""
        from pyc.runtime.text.authored_text import TEMPLATE, AuthoredText
        from pyc.runtime.text.chat.sandbox import ChatEnvironment, raise_exception

        checked_text(source, "chat template")
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise RunError(f"chat template: {len(source)} characters, expected at most {MAX_TEMPLATE_CHARACTERS}")
        self._special_tokens = {name: AuthoredText(text, TEMPLATE) for name, text in (special_tokens or {}).items()}
        self._turns = Turns()  # a signal handler may render, too
        self._environment = ChatEnvironment({"raise_exception": raise_exception, "strftime_now": strftime_now})
        try:
            self._pieces = self._environment.compile_chat(source)
        except unless_signalled(Exception) as error:  # untrusted code: jinja2 and Python raise all kinds
            refuse_deep_caller(error)
            if isinstance(error, RunError):
                raise
            raise _refusal(error) from error

    def render(
        self,
        messages: Sequence[Mapping[str, JsonValue]],
        *,
        tools: Sequence[Mapping[str, JsonValue]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, JsonValue] | None = None,
    ) -> AuthoredText:
        """The prompt's text, with the author of each character.

        `variables` are further names for the template, such as enable_thinking. Raises RunError when the template
        refuses the conversation, fails, or passes a limit.
        """
        from pyc.runtime.text.chat.limits import Meter
        from pyc.runtime.text.chat.plain_input import plain_messages, plain_tools, plain_variables

        conversation = plain_messages(messages)
        given = plain_variables(variables)
        schemas = plain_tools(tools)
        meter = Meter(_characters(conversation) + _characters(schemas) + _characters(given), len(conversation))
        values: dict[str, object] = {
            **self._special_tokens,
            "documents": None,
            **given,
            "messages": conversation,
            "tools": schemas,
            "add_generation_prompt": flag(add_generation_prompt, "add_generation_prompt"),
        }
        with self._turns.lock:
            former, self._environment.meter = self._environment.meter, meter
            try:
                with meter.budget.counting():
                    return self._collect(values, meter.max_output)
            finally:
                self._environment.meter = former

    def _collect(self, values: Mapping[str, object], max_characters: int) -> AuthoredText:
        from pyc.runtime.text.authored_text import TEMPLATE, AuthoredText

        nothing = AuthoredText("", TEMPLATE)
        joined: list[AuthoredText] = []
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._pieces(values):
                pieces.append(piece)
                length += len(piece)
                if len(pieces) == _PIECES_AT_ONCE:
                    joined.append(nothing.join(pieces))
                    pieces.clear()
                if length > max_characters:
                    raise RunError(f"chat template: more than {max_characters} characters of output")
            return nothing.join([*joined, *pieces])  # a filter of a block may give anything
        except unless_signalled(Exception) as error:  # untrusted code: it can provoke any exception that Python has
            refuse_deep_caller(error)
            if isinstance(error, RunError):
                raise
            raise _refusal(error, cast("list[dict[str, object]]", values["messages"])) from error


def strftime_now(pattern: str) -> str:
    """The local time, as transformers gives it to templates."""
    if len(pattern) > MAX_DATE_FORMAT_CHARACTERS:
        raise RunError(f"chat template: a date format of more than {MAX_DATE_FORMAT_CHARACTERS} characters")
    return datetime.now().strftime(pattern)


def _refusal(error: Exception, messages: Sequence[Mapping[str, object]] = ()) -> RunError:
    kind = type(error).__name__
    line = getattr(error, "lineno", None)
    where = f" in line {line}" if isinstance(line, int) else ""
    is_of_texts = kind in ("TypeError", "UndefinedError") and re.search("concatenate|content", str(error)) is not None
    why = _odd_content(messages) if is_of_texts else ""
    return RunError(f"chat template: {printable(str(error).strip()[:500]) or kind}{where} ({kind}){why}")


def _odd_content(messages: Sequence[Mapping[str, object]]) -> str:
    """Which message a template that takes texts alone may have failed at."""
    for index, message in enumerate(messages):
        if "role" not in message:
            return f"; messages[{index}] has no role, which may be why"
        if message.get("tool_calls"):  # which need none
            continue
        if "content" not in message:
            return f"; messages[{index}] has no content, which may be why"
        if not isinstance(message["content"], str):
            return f"; the content of messages[{index}] is {kind_of(message['content'])} and not text, which may be why"
    return ""


def _characters(value: object) -> int:
    """Characters in all texts of plain data, and 8 for each value."""
    if isinstance(value, str):
        return len(value) + 8
    if isinstance(value, dict):
        return 8 + sum(len(name) + _characters(item) for name, item in value.items())
    if isinstance(value, list):
        return 8 + sum(_characters(item) for item in value)
    return 8
