"""The commands of a conversation: lines that begin with a slash.

/save writes the whole conversation, turns that the model no longer sees too: JSON that /load reads, or Markdown for a
name that ends in .md. The file appears whole or not at all.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyc.commands.screen import tell
from pyc.runtime.errors import RunError
from pyc.runtime.host.files_read import role_of
from pyc.runtime.text.chat.conversation import Conversation, exceeds_a_text
from pyc.runtime.text.chat.thinking import SWITCH, has_switch
from pyc.runtime.text.counted import counted

if TYPE_CHECKING:
    from pyc.commands.chat import Chat

MAX_SAVED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """What a command does with what follows its name; `usage` is how it is written, `summary` its line of /help."""

    run: Callable[[Chat, str], None]
    usage: str
    summary: str


def run_command(chat: Chat, line: str) -> None:
    """Run what was typed behind the slash. Raises PycError; an unknown command is told, not sent to the model."""
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        meant = f" (here it is /{ELSEWHERE[name]})" if name in ELSEWHERE else ""
        raise RunError(
            f"/{name}: there is no such command{meant}; /help lists them, and //{name} sends /{name} to the model"
        )
    argument = argument.strip()
    if argument and command.usage == f"/{name}":
        raise RunError(f"/{name}: got {argument!r:.40}, expected nothing behind it")
    try:
        command.run(chat, argument)
    except BrokenPipeError:  # nobody reads what the conversation prints
        raise
    except OSError as error:
        raise RunError(f"/{name}: {error.filename or argument}: {error.strerror}") from error


def _help(chat: Chat, argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        tell(f"{command.usage:{width}}  {command.summary}")
    tell(
        '//text sends "/text". A line that ends in \\ goes on in the next; """ begins and ends several lines.\n'
        "Ctrl-C ends an answer, twice the conversation, as Ctrl-D does."
    )


def _exit(chat: Chat, argument: str) -> None:
    chat.is_over = True


def _reset(chat: Chat, argument: str) -> None:
    chat.conversation.reset()
    tell("(forgotten; the system text stays)" if chat.conversation.system else "(forgotten)")


def _undo(chat: Chat, argument: str) -> None:
    turn = chat.conversation.undo()
    if turn is None:
        raise RunError("/undo: nothing was said yet")
    question = " ".join(turn.question.split())
    tell(f"(taken back: {question[:60]}{'...' if len(question) > 60 else ''})")


def _system(chat: Chat, argument: str) -> None:
    chat.conversation.system = argument or None
    tell("(from now on with this system text)" if argument else "(from now on without a system text)")


def _think(chat: Chat, argument: str) -> None:
    if argument not in ("on", "off"):
        raise RunError(f"/think: got {argument!r:.40}, expected on or off")
    if not has_switch(chat.model.chat_template):
        raise RunError(f"/think: this model's chat template has no switch for thinking ({SWITCH})")
    chat.variables[SWITCH] = argument == "on"
    tell(f"(thinking is {argument})")


def _stats(chat: Chat, argument: str) -> None:
    conversation = chat.conversation
    context = chat.model.session.context
    messages = conversation.messages()
    used = 0
    if messages:  # what asks for an answer is counted, too
        used = context if exceeds_a_text(messages, context) else min(chat.count_tokens(messages), context)
    unseen = f", {conversation.first_seen} of them no longer seen" if conversation.first_seen else ""
    tell(f"context: {used} of {context} tokens used; {_turns(conversation)}{unseen}")
    if chat.last is not None:
        tell(f"last answer: {chat.last.statistics()}")


def _turns(conversation: Conversation) -> str:
    return counted(len(conversation.turns), "turn")


def _save(chat: Chat, argument: str) -> None:
    _write(chat, argument, "/save", replace=False)


def _save_over(chat: Chat, argument: str) -> None:
    _write(chat, argument, "/save!", replace=True)


def _write(chat: Chat, argument: str, name: str, *, replace: bool) -> None:
    from pyc.compiler.files.staging import StagedFile

    path = _path(argument, name)

    def check() -> None:
        if not path.exists():
            return
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise RunError(f"{name}: {path} is not a regular file; choose another name")
        if (role := role_of(found)) is not None:
            raise RunError(f"{name}: {path} is {role}, which is read here; choose another name")
        if not replace:
            raise RunError(f"{name}: {path} exists; /save! {argument} replaces it")

    check()
    conversation = chat.conversation
    text = conversation.as_markdown() if path.suffix.lower() == ".md" else conversation.as_json()
    with StagedFile(path, allowed=check) as file:
        file.write(text.encode("utf-8"))
        file.publish()
    tell(f"({_turns(conversation)} saved to {path})")


def _load(chat: Chat, argument: str) -> None:
    path = _path(argument, "/load")
    if not path.is_file():
        raise RunError(f"/load: {path} is no file; expected one that /save wrote")
    with path.open("rb") as file:
        document = file.read(MAX_SAVED_BYTES + 1)
    if len(document) > MAX_SAVED_BYTES:
        raise RunError(f"/load: {path}: more than {MAX_SAVED_BYTES} bytes")
    try:
        chat.conversation = Conversation.from_json(document)
    except RunError as error:
        raise RunError(f"/load: {path}: {error}") from error
    tell(f"({_turns(chat.conversation)} loaded, in the place of what was said here)")


def _path(argument: str, name: str) -> Path:
    """The file meant, with links followed, so that what is replaced is the file and not a link to it. Quotes around the
    name, as a shell takes them, are not part of it."""
    is_quoted = len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "'\""
    if is_quoted and not os.path.exists(argument):
        argument = argument[1:-1]
    if not argument:
        raise RunError(f"{name}: a file name is missing")
    try:
        return Path(argument).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise RunError(f"{name}: {argument!r:.80}: {error}") from error


COMMANDS = {
    "help": ChatCommand(_help, "/help", "list the commands"),
    "reset": ChatCommand(_reset, "/reset", "forget what was said"),
    "undo": ChatCommand(_undo, "/undo", "take the last question and its answer back"),
    "system": ChatCommand(_system, "/system [TEXT]", "set the system text, or take it away"),
    "think": ChatCommand(_think, "/think on|off", "have a thinking model think, or not"),
    "stats": ChatCommand(_stats, "/stats", "how much of the context is used, and how fast the last answer came"),
    "save": ChatCommand(_save, "/save FILE", "write the conversation to a new file: JSON, or Markdown for *.md"),
    "save!": ChatCommand(_save_over, "/save! FILE", "the same, in place of a file that exists"),
    "load": ChatCommand(_load, "/load FILE", "go on with a conversation that was saved as JSON"),
    "exit": ChatCommand(_exit, "/exit", "end the conversation"),
    "quit": ChatCommand(_exit, "/quit", "the same"),
}
"""Every command by its name."""
ELSEWHERE = {"bye": "exit", "clear": "reset", "new": "reset", "regen": "undo", "set": "system", "?": "help"}
"""Commands of other tools' chats, and ours."""
