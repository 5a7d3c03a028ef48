"""`pyc run --chat` on a terminal: a conversation that nothing but its end ends.

An error of one turn is told and the turn is as if it had not been; a full context lets the oldest turns go. Ctrl-C ends
an answer, at the prompt twice within two seconds the conversation; Ctrl-D and /exit end it in peace.
"""

import os
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from pyc.commands.chat_commands import COMMANDS, run_command
from pyc.commands.chat_history import ChatHistory
from pyc.commands.line_editor import DroppedMessageError, LineEditor
from pyc.commands.screen import Screen, tell
from pyc.commands.streaming import Answer, generate_into
from pyc.commands.waiting import noticing_signals
from pyc.runtime.errors import PycError
from pyc.runtime.host import unfinished
from pyc.runtime.text.chat.conversation import FREE_SHARE, ChatMessage, Conversation, Cut
from pyc.runtime.text.chat.thinking import Piece, ThinkingSplitter, opens_thinking
from pyc.signals import resume

if TYPE_CHECKING:
    from pyc.runtime.generation.settings import GenerateSettings
    from pyc.runtime.model import Model
    from pyc.runtime.text.chat.template import JsonValue

SECOND_INTERRUPT_S = 2.0
WELCOME = "Ctrl-C ends an answer, Ctrl-D the conversation; /help tells more."


def converse(
    model: "Model",
    options: "GenerateSettings",
    *,
    system: str | None,
    variables: "Mapping[str, JsonValue]",
    stats: bool,
    keeps_history: bool,
) -> None:
    """Talk until the end of input or /exit.

    Raises RunError before the first prompt for a model that cannot chat, and KeyboardInterrupt for the second Ctrl-C.
    """
    _ = model.chat_template, model.tokenizer.vocab_size, model.session  # what it lacks is said before it is asked
    chat = Chat(model, options, Conversation(system), variables, stats=stats)
    editor = LineEditor(ChatHistory() if keeps_history else None, [f"/{name}" for name in COMMANDS])
    tell(WELCOME)
    with _terminal_kept(), noticing_signals():
        _loop(chat, editor)


def _loop(chat: "Chat", editor: LineEditor) -> None:
    interrupted_s = -SECOND_INTERRUPT_S
    while not chat.is_over:
        try:
            message = editor.read_message()
        except EOFError:
            tell("")
            return
        except DroppedMessageError as error:
            tell(f"pyc: {error}")
            continue
        except KeyboardInterrupt as error:
            now_s = time.monotonic()
            if type(error) is not KeyboardInterrupt or now_s - interrupted_s < SECOND_INTERRUPT_S:
                raise
            resume()
            interrupted_s = now_s
            tell("\n(Ctrl-C once more, or Ctrl-D, ends the conversation)")
            continue
        try:
            chat.hear(message)
        except PycError as error:
            tell(f"pyc: {error}")
        except KeyboardInterrupt as error:  # between two steps of an answer; SIGTERM always ends the command
            if type(error) is not KeyboardInterrupt:
                raise
            resume()


class Chat:
    """A conversation with a model on a screen: what a message that was typed does."""

    def __init__(
        self,
        model: "Model",
        options: "GenerateSettings",
        conversation: Conversation,
        variables: "Mapping[str, JsonValue]",
        *,
        stats: bool,
    ) -> None:
        """`variables` are names for the chat template; `stats` prints timings after each answer."""
        self.model = model
        self.conversation = conversation
        self.variables = dict(variables)
        self._screen = Screen()
        self.last: Answer | None = None
        self.is_over = False
        self._options = options
        self._stats = stats

    def hear(self, message: str) -> None:
        """Run a command, or ask the model. Raises PycError; the conversation is then as it was."""
        if message.startswith("/") and "\n" not in message:
            if not message.startswith("//"):
                run_command(self, message[1:])
                return
            message = message[1:]
        if message.strip():
            self.ask(message)

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of a prompt. Raises PycError."""
        return len(self.model.prompt_ids(messages, chat_variables=self.variables))

    def ask(self, question: str) -> None:
        """Ask the model, print its answer, and keep both. Raises PycError."""
        context = self.model.session.context
        reserved = min(self._options["max_tokens"] or context, context // FREE_SHARE)
        prompt = self.conversation.fit(question, self.count_tokens, context=context, answer_tokens=reserved)
        if prompt.left_out:
            turns = "the oldest turn" if prompt.first == 1 else f"the oldest {prompt.first} turns"
            tell(f"(the context of {context} tokens is full: the model no longer sees {turns})")
        self.last = answer = Answer(prompt.tokens)
        spoken, was_interrupted = self._answer(prompt.messages, answer)
        cut: Cut | None = None
        if was_interrupted:
            cut = "interrupted"
        elif answer.tokens and answer.tokens[-1].finish_reason == "length":
            cut = "max_tokens" if len(answer.tokens) == self._options["max_tokens"] else "context"
        text = spoken.lstrip("\n")
        if text or cut is None:
            self.conversation.keep(prompt, text, cut)
        self._say_why_cut(cut, is_kept=bool(text))
        if self._stats:
            tell(answer.statistics())

    def _answer(self, messages: list[ChatMessage], answer: Answer) -> tuple[str, bool]:
        """What the model said, without its thinking, and whether Ctrl-C ended it."""
        template = self.model.chat_template
        splitter = ThinkingSplitter(is_open=opens_thinking(template.render(messages, variables=self.variables)))
        spoken: list[str] = []

        def show(pieces: list[Piece]) -> None:
            for piece in pieces:
                if not piece.is_thinking:
                    spoken.append(piece.text)
                self._screen.show(piece.text, dim=piece.is_thinking)

        was_interrupted = False
        try:
            stream = generate_into(
                answer, self.model, messages, self._options, variables=self.variables, reuse_prefix=True
            )
            with closing(stream) as tokens:
                for token in tokens:
                    show(splitter.add(token.text))
        except KeyboardInterrupt as error:
            if type(error) is not KeyboardInterrupt:  # SIGTERM always ends the command
                raise
            resume()
            was_interrupted = True
        finally:
            if answer.tokens:
                show(splitter.finish())
                print(flush=True)
        return "".join(spoken), was_interrupted

    def _say_why_cut(self, cut: Cut | None, *, is_kept: bool) -> None:
        """Tell what ended an answer before the model did, and what to do about it."""
        if cut is None:
            return
        context, most = self.model.session.context, self._options["max_tokens"]
        remedies: dict[Cut, tuple[str, str, str]] = {
            "interrupted": ("interrupted", "", ""),
            "max_tokens": (
                f"cut after --max-tokens {most}",
                "; say 'go on', or start with a larger --max-tokens",
                "; start with a larger one",
            ),
            "context": (
                f"cut, the context of {context} tokens is full",
                "; say 'go on', and the oldest turns make room",
                "; ask for less at once, or /reset",
            ),
        }
        what, on, instead = remedies[cut]
        said = f"{what}{on}" if is_kept else f"{what}{instead}; there is no answer, so the question is not kept"
        tell(f"({said})")


@contextmanager
def _terminal_kept() -> Iterator[None]:
    """Give the terminal back as it was. When an error ends the conversation, what was typed ahead is thrown away: it
    was meant for the model, and would run in the shell."""
    try:
        descriptor = sys.stdin.fileno()
        former = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        yield
        return
    failed = True

    def restore() -> None:
        with suppress(OSError, termios.error):
            if os.tcgetpgrp(descriptor) == os.getpgrp():  # else it is another's, and touching it would stop us
                # Not TCSAFLUSH, which waits until all is shown: Ctrl-S may have stopped that.
                termios.tcsetattr(descriptor, termios.TCSANOW if failed else termios.TCSADRAIN, former)
                if failed:
                    termios.tcflush(descriptor, termios.TCIFLUSH)

    with unfinished.held(restore):  # where the process ends while the main thread is in readline
        try:
            yield
            failed = False
        finally:
            restore()
