"""A model's chat templates by name, and the files that an artifact and a checkpoint keep them in.

They are those of transformers: chat_template.jinja is "default", additional_chat_templates/NAME.jinja is NAME.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT = "default"
TOOL_USE = "tool_use"
DEFAULT_FILE = "chat_template.jinja"
FOLDER = "additional_chat_templates"
SUFFIX = ".jinja"


def file_of(name: str) -> str:
    """Return the file in which the template `name` lies."""
    return DEFAULT_FILE if name == DEFAULT else f"{FOLDER}/{name}{SUFFIX}"


def chosen_name(templates: Mapping[str, object], *, has_tools: bool) -> str:
    """Return which template renders messages: "tool_use" with tools, where there is one, else "default".

    An empty list of tools is one, too, as in transformers' get_chat_template.
    """
    return TOOL_USE if has_tools and TOOL_USE in templates else DEFAULT
