"""`pyc run --prompts FILE`: many prompts of a file, which the model works on several at a time."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from pyc.commands.count_progress import CountProgress
from pyc.commands.json_lines import is_json_lines, parse_line
from pyc.commands.reading import read_lines
from pyc.commands.screen import Screen, tell
from pyc.commands.streaming import print_json_line
from pyc.runtime.errors import RunError
from pyc.runtime.text.counted import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyc.runtime.generation.prompts import Prompt
    from pyc.runtime.generation.request import Token
    from pyc.runtime.generation.settings import GenerateSettings
    from pyc.runtime.generation.token_stream import Batch
    from pyc.runtime.model import Model
    from pyc.runtime.text.chat.template import JsonValue

TITLE_CHARACTERS = 60
EXPECTED = 'expected a JSON string, {"prompt": "..."} or {"messages": [...]}, and "id" beside them if you like'


@dataclass(frozen=True, slots=True)
class Entry:
    """A prompt of the file: what the model is asked, what it is called on the screen and in errors, its own "id"."""

    prompt: "Prompt"
    title: str
    where: str
    id: str | int | None = None


def read_prompts(path: Path, *, chat: bool, system: str | None) -> list[Entry]:
    """The prompts of a file, one a line: text, or JSON where it is a *.jsonl or *.ndjson; empty lines are none.

    With `chat`, a text is what a user says, and `system` stands before every conversation that has no system text of
    its own. Raises click.UsageError, naming the line.
    """
    is_json = is_json_lines(path)
    entries: list[Entry] = []
    for number, line in enumerate(read_lines(path, waits_for="a prompt a line"), 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        entry = _parsed(line, where) if is_json else Entry(line, line, where)
        if chat and isinstance(entry.prompt, str):
            entry = replace(entry, prompt=[{"role": "user", "content": entry.prompt}])
        if chat and system is not None and not _has_system(entry.prompt):
            entry = replace(entry, prompt=[{"role": "system", "content": system}, *entry.prompt])
        entries.append(entry)
    if not entries:
        raise click.UsageError(f"{path}: there is no prompt in it; write one a line")
    return entries


def _has_system(messages: Sequence[object]) -> bool:
    """Whether a conversation begins with a system text of its own."""
    first = messages[0]
    return isinstance(first, dict) and first.get("role") in ("system", "developer")


def _parsed(line: str, where: str) -> Entry:
    found = parse_line(line, where, EXPECTED)
    document, name = found.value, found.id
    if isinstance(document, str):
        document = {"prompt": document}
    (key, value), *others = [*document.items()] or [("", None)]
    if not others and key == "prompt" and isinstance(value, str) and value:
        return Entry(value, value, where, name)
    if not others and key == "messages" and isinstance(value, list) and value and isinstance(value[-1], dict):
        return Entry(value, str(value[-1].get("content", "")), where, name)
    raise click.UsageError(f"{where}: {EXPECTED}")


def generate_all(
    model: "Model",
    entries: Sequence[Entry],
    options: "GenerateSettings",
    variables: "Mapping[str, JsonValue] | None",
    *,
    as_json: bool,
    echo: bool,
    stats: bool,
) -> None:
    """Generate for every prompt. Texts are printed in the file's order, JSON lines as their prompts are finished.

    Raises RunError, naming the line of a prompt that cannot be run.
    """
    start = time.perf_counter()
    prompts = cast("Sequence[str]", [entry.prompt for entry in entries])
    settings: GenerateSettings = {**options, "chat_variables": variables or None}
    try:
        generated = model.generate(prompts, **settings)
    except RunError as error:
        if error.prompt is None:
            raise
        raise RunError(f"{entries[error.prompt].where}: {error.__cause__}") from error
    with closing(generated) as batch, CountProgress("prompts", len(entries), appears=True) as progress:
        if as_json:
            tokens = _print_json(batch, entries, progress)
        else:
            tokens = _print_texts(batch, entries, echo, progress)
    if stats:
        elapsed_s = time.perf_counter() - start
        read = sum(stream.prompt_tokens for stream in batch)
        prompts = f"{counted(len(entries), 'prompt')} of {counted(read, 'token')}"
        tell(f"{prompts}; {counted(tokens, 'token')} in {elapsed_s:.2f} s, {tokens / elapsed_s:.1f} tokens/s in all")


def _print_texts(batch: "Batch", entries: Sequence[Entry], echo: bool, progress: CountProgress) -> int:
    screen, count = Screen(), 0
    for number, (stream, entry) in enumerate(zip(batch, entries, strict=True), 1):
        title = " ".join(entry.title.split())
        shortened = title if len(title) <= TITLE_CHARACTERS else f"{title[: TITLE_CHARACTERS - 3]}..."
        screen.show(f"==> {number}: {shortened} <==\n")
        if echo:
            screen.show(entry.title)
        try:
            for token in stream:
                screen.show(token.text)
                count += 1
        finally:
            screen.show("\n" if number == len(entries) else "\n\n")
        progress.reach(number)
    return count


def _print_json(batch: "Batch", entries: Sequence[Entry], progress: CountProgress) -> int:
    found: list[list[Token]] = [[] for _ in entries]
    finished = 0
    for index, token in batch.stream():
        found[index].append(token)
        if token.finish_reason is not None:
            name = {} if entries[index].id is None else {"id": entries[index].id}
            print_json_line(
                {
                    "index": index,
                    **name,
                    "text": "".join(one.text for one in found[index]),
                    "finish_reason": token.finish_reason,
                    "prompt_tokens": batch[index].prompt_tokens,
                    "completion_tokens": len(found[index]),
                }
            )
            finished += 1
            progress.reach(finished)
    return sum(map(len, found))
