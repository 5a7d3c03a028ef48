"""What a prompt becomes: the token ids of text, of ids, or of messages by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pyc.runtime import arguments
from pyc.runtime.errors import RunError
from pyc.runtime.generation.given_ids import no_room_for_output
from pyc.runtime.text.chat.template import ChatTemplate, JsonValue
from pyc.runtime.text.chat.template_files import DEFAULT, chosen_name
from pyc.runtime.text.tokenizer import Tokenizer, longest_text

Message = Mapping[str, JsonValue]
Prompt = str | Sequence[int] | Sequence[Message]
Prompts = Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]


class PromptEncoder:
    """Encodes prompts for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat_sources: str | Mapping[str, str] | None,
        context: int,
    ) -> None:
        """`chat_sources`, a template or several by name, go before the tokenizer's own; more than `context` token ids
        are refused, and text that has many more."""
        self._tokenizer = tokenizer
        given = {DEFAULT: chat_sources} if isinstance(chat_sources, str) else chat_sources
        self._chat_sources = given or (tokenizer.chat_templates if tokenizer else {})
        self._chats: dict[str, ChatTemplate] = {}
        self._context = context

    @property
    def tokenizer(self) -> Tokenizer:
        """The artifact's tokenizer. Raises RunError when it has none."""
        if self._tokenizer is None:
            raise RunError(
                "this artifact has no tokenizer, since its checkpoint had no tokenizer.json; put one there and build "
                "again, or pass token ids in Python"
            )
        return self._tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """The compiled chat template "default". Raises RunError when there is none or it is not acceptable."""
        return self._chat_template(DEFAULT)

    def _chat_template(self, name: str) -> ChatTemplate:
        chat = self._chats.get(name)
        if chat is None:
            source = self._chat_sources.get(name)
            if source is None:
                raise RunError(
                    "this model has no chat template, so it takes no messages; give it a text to continue "
                    "(pyc run: without --chat)"
                )
            chat = self._chats[name] = ChatTemplate(source, self.tokenizer.special_tokens)
        return chat

    def encode(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Message] | None = None,
        chat_variables: Mapping[str, JsonValue] | None = None,
    ) -> list[int]:
        """The token ids of `prompt`, as `Model.prompt_ids` says. Raises RunError."""
        messages = messages_of(prompt)
        most = longest_text(self._context)
        if messages is not None:
            template = self._chat_template(chosen_name(self._chat_sources, has_tools=tools is not None))
            text = template.render(messages, tools=tools, variables=chat_variables)
            return self.tokenizer.encode_chat(text, max_characters=most)
        if tools is not None or chat_variables is not None:
            from pyc.runtime.text.chat.plain_input import plain_tools, plain_variables

            meant_for_messages = {"tools": plain_tools(tools), "chat_variables": plain_variables(chat_variables)}
        else:
            meant_for_messages = {}
        for name, value in meant_for_messages.items():
            if value:
                raise RunError(f"{name}: got {len(value)} with a prompt that is not a list of messages; leave them out")
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, max_characters=most)
        if isinstance(prompt, (list, tuple)) and any(isinstance(item, str) for item in prompt[:1]):
            raise RunError("prompt: got a list of texts, expected one text; ask for each by itself")
        dimensions = getattr(prompt, "ndim", 1)
        if dimensions != 1:
            raise RunError(
                f"prompt: got an array of {dimensions} dimensions, expected the token ids of one prompt; ask for each "
                "row by itself, without padding"
            )
        ids = arguments.integers(arguments.first_of(cast("Sequence[object]", prompt), self._context), "prompt")
        if len(ids) > self._context:
            raise no_room_for_output(prompt, self._context)
        return ids


def messages_of(prompt: object) -> Sequence[Message] | None:
    """The prompt as messages, or None when it is text or token ids. Raises RunError when it is neither."""
    expected = "expected text, token ids, or messages"
    if isinstance(prompt, str):
        return None
    if not arguments.is_sequence(prompt):
        raise RunError(f"prompt: got {arguments.shown(prompt)}, {expected}")
    items = cast("Sequence[object]", prompt)
    first = arguments.first_of(items, 0)
    if not first:
        return None
    if not isinstance(first[0], Mapping):
        if hasattr(first[0], "role") and hasattr(first[0], "content"):
            remedy = "write [message.model_dump() for message in messages] for those of pydantic"
            raise RunError(f"prompt[0]: got {arguments.shown(first[0])}, expected a mapping with its role; {remedy}")
        return None
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise RunError(f"prompt[{index}]: got {arguments.shown(item)}, expected a message as prompt[0] is")
    return cast("Sequence[Message]", items)


def several(prompt: object) -> list[Prompt] | None:
    """The prompts of a list of them: of texts, of token ids, or of messages; None for a single prompt."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return None
    if not isinstance(prompt[0], str) and (isinstance(prompt[0], Mapping) or not arguments.is_sequence(prompt[0])):
        return None
    return list(prompt)
