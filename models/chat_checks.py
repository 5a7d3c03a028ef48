"""Whether a checkpoint's chat templates work: a model without one still continues texts, so a build only warns."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyc.compiler.files.source_files import SourceFiles
from pyc.runtime.errors import PycError
from pyc.runtime.text.chat.template import ChatTemplate, JsonValue
from pyc.runtime.text.chat.template_files import DEFAULT, TOOL_USE, file_of
from pyc.runtime.text.special_tokens import CONFIG, MAP, MODEL, TOKENIZER
from pyc.runtime.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_QUESTION: tuple[dict[str, JsonValue], ...] = ({"role": "user", "content": "Hello"},)
_TOOL: dict[str, JsonValue] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time of day.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}},
    },
}
_CASES: tuple[tuple[str, tuple[dict[str, JsonValue], ...] | None, str], ...] = (
    (DEFAULT, None, "no messages (pyc run --chat), only texts to continue"),
    (TOOL_USE, (_TOOL,), "no messages with tools"),
)
"""The templates that the runtime renders, the tools that they are tried with, and what fails without them."""


def check_chat_templates(carried: Mapping[str, bytes], where: str, files: SourceFiles) -> None:
    """Log a warning for each chat template among `carried`, the files of an artifact, that cannot render a question.

    Templates are compiled and rendered as the runtime does it, within its limits.
    """
    content = carried.get(TOKENIZER)
    if content is None:
        return
    for name, tools, lost in _CASES:
        source = carried.get(file_of(name))
        if source is None:
            continue
        try:
            tokenizer = Tokenizer(
                content, carried.get(CONFIG), map_json=carried.get(MAP), model_json=carried.get(MODEL)
            )
            ChatTemplate(source.decode("utf-8"), tokenizer.special_tokens).render(_QUESTION, tools=tools)
        except PycError as problem:
            files.warn(
                logger,
                "%s: the chat template %r does not work: %s; the artifact will take %s; mend "
                "the template, or take that of the model it was trained from",
                where, name, str(problem).removeprefix("chat template: "), lost,
            )  # fmt: skip
