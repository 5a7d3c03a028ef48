"""The chat templates of a checkpoint, by name, from the files that AutoTokenizer of transformers 5 reads.

chat_template.jinja and additional_chat_templates/NAME.jinja go before the chat_template of tokenizer_config.json: text,
or named templates as a list or a mapping. chat_template.json, which transformers reads for processors only, is last.
The artifact has each as a file, as transformers writes it (runtime/text/chat/template_files.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from pyc.models.files import Directory
from pyc.models.messages import quoted, shown
from pyc.runtime.artifact.format import is_plain_name
from pyc.runtime.errors import IngestError
from pyc.runtime.text.chat.template_files import DEFAULT, DEFAULT_FILE, FOLDER, SUFFIX, file_of

TEMPLATE_JSON = "chat_template.json"


class NamedTemplate(Struct, frozen=True):
    """An entry of the list in tokenizer_config.json."""

    name: str
    template: str


Templates = str | tuple[NamedTemplate, ...] | dict[str, str] | None
"""What tokenizer_config.json may have as chat_template."""


class _TemplateFile(Struct, frozen=True):
    chat_template: str


def template_files(directory: Directory) -> tuple[str, ...]:
    """Return the names of the files of templates that lie there, chat_template.jinja first."""
    others = [f"{FOLDER}/{name}" for name in directory.names_in(FOLDER) if name.endswith(SUFFIX)]
    return tuple(name for name in (DEFAULT_FILE, *others) if directory.locate(name) is not None)


def read_chat_templates(
    directory: Directory, configured: Templates, config_file: str
) -> tuple[tuple[str, bytes], ...]:
    """Return (file, text in UTF-8) of each template, "default" first; `configured` is what `config_file` has.

    Raises IngestError for templates of which none is called "default", for a name that is not one of a file, and for
    text that is not UTF-8.
    """
    where = f"{directory.label}: {config_file}"
    files = template_files(directory)
    if files:
        where = f"{directory.label}: {FOLDER}"
        named = {_name(file): _text(directory, file) for file in files}
    elif isinstance(configured, str):
        named = {DEFAULT: configured}
    elif isinstance(configured, Mapping):
        named = dict(configured)
    elif configured is not None:
        named = {entry.name: entry.template for entry in configured}
    elif (file := directory.parse(TEMPLATE_JSON, _TemplateFile)) is not None:
        named = {DEFAULT: file.chat_template}
    else:
        named = {}
    if named and DEFAULT not in named:
        raise IngestError(f"{where}: chat templates {shown(', '.join(named))}, none is called {DEFAULT!r}")
    for name in named:
        if "/" in name or not is_plain_name(file_of(name)):
            raise IngestError(f"{where}: the chat template {quoted(name)} is not named as a file can be; rename it")
    names = sorted(named, key=lambda name: (name != DEFAULT, name))
    return tuple((file_of(name), named[name].encode("utf-8")) for name in names)


def _name(file: str) -> str:
    return DEFAULT if file == DEFAULT_FILE else file.removeprefix(f"{FOLDER}/").removesuffix(SUFFIX)


def _text(directory: Directory, file: str) -> str:
    try:
        return (directory.read(file) or b"").decode("utf-8")
    except UnicodeDecodeError as problem:
        raise IngestError(f"{directory.label}: {file} is not UTF-8: {problem}") from problem
