"""pyc run --chat on a terminal: nothing but its end ends the conversation, and the terminal is left as it was."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import chat_program
import pytest
from terminals import Terminal

from pyc.commands.line_editor import DroppedMessageError, LineEditor

Start = Callable[..., Terminal]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Start]:
    """`chat(*options, **variables)`: a conversation with chat_program's model, at its first prompt."""
    started: list[Terminal] = []

    def start(*options: str, stdout: int | None = None, **variables: str) -> Terminal:
        environment = {**os.environ, "PYC_HOME": str(tmp_path / "home"), "TERM": "xterm", **variables}
        environment.pop("NO_COLOR", None)
        environment.update({name: value for name, value in variables.items() if name == "NO_COLOR"})
        command = [sys.executable, chat_program.__file__, "run", "m.pyca", "--chat", *options]
        started.append(Terminal(command, environment, stdout=stdout))
        started[-1].expect("/help tells more.\n> ")
        return started[-1]

    yield start
    for terminal in started:
        terminal.__exit__(None, None, None)


def test_a_full_context_drops_the_oldest_turns_and_talks_on(chat):
    terminal = chat()
    assert terminal.ask("seen") == "seen\n1 messages"
    assert terminal.ask("a" * 40).endswith("a'")
    assert "no longer sees the oldest 2 turns)\n'bbb" in terminal.ask("b" * 50)
    assert "3 turns, 2 of them no longer seen" in terminal.ask("/stats")
    assert "taken back: bbb" in terminal.ask("/undo")
    assert "2 turns\n" in terminal.ask("/stats").replace("\r", "")  # both are seen again
    assert "taken back: aaa" in terminal.ask("/undo")
    assert "1 turn\n" in terminal.ask("/stats").replace("\r", "")
    assert "takes 206 tokens, expected at most 119" in terminal.ask("c" * 200)
    assert terminal.ask("seen").endswith("messages"), "the message that was too long has not ended the conversation"
    terminal.send("/exit\n")
    assert terminal.wait() == 0
    assert terminal.is_left_as_found()


def test_a_question_that_fails_leaves_the_turns_seen_that_made_room_for_it(chat):
    terminal = chat()
    terminal.ask("a" * 40)
    shown = terminal.ask("fail")
    assert "no longer sees the oldest turn" in shown and "pyc: " in shown.partition("turn)")[2]
    stats = terminal.ask("/stats")
    assert "tokens used; 1 turn" in stats and "no longer seen" not in stats


@pytest.mark.slow
def test_an_answer_that_was_cut_says_by_what(chat):
    terminal = chat("--max-tokens", "40")
    assert "(cut after --max-tokens 40; say 'go on'" in terminal.ask("long")
    terminal.ask("/reset")
    full = chat()
    assert "(cut, the context of 120 tokens is full; say 'go on'" in full.ask("long")
    assert "context: 120 of 120 tokens used" in full.ask("/stats")


def test_an_error_of_one_turn_ends_nothing(chat):
    terminal = chat("--system", "terse")
    assert "pyc: chat template: I refuse" in terminal.ask("refuse")
    assert "abc\npyc: the kernels are out of order" in terminal.ask("fail")
    terminal.send(b"ab\xff\n")
    shown = terminal.expect("\n> ")
    assert "that line is not text in the terminal's encoding, utf-8, and is left out" in shown and "LC_ALL" not in shown
    assert terminal.ask("seen") == "seen\n2 messages", "the system text and the question"
    terminal.send(b"\x04")
    assert terminal.wait() == 0
    assert terminal.is_left_as_found()


def test_a_line_that_the_locale_cannot_read_says_which_locale_can(chat):
    terminal = chat(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    shown = terminal.ask("schön")
    assert "pyc: that line is not text in the terminal's encoding, ascii, and is left out; start pyc with LC_" in shown
    assert "schön" in chat(LC_ALL="C.UTF-8").ask("schön")


def test_ctrl_c_ends_an_answer_which_stays_and_twice_the_conversation(chat, tmp_path):
    terminal = chat()
    terminal.send("slow\n")
    terminal.expect("...")
    terminal.interrupt()
    assert terminal.expect("\n> ").endswith("(interrupted)")
    terminal.ask(f"/save {tmp_path / 'said.json'}")
    messages = json.loads((tmp_path / "said.json").read_text())["messages"]
    assert messages[0] == {"role": "user", "content": "slow"}
    assert messages[1]["content"].startswith("...")
    assert messages[1]["cut"] == "interrupted"
    terminal.interrupt()
    terminal.expect("Ctrl-C once more")
    terminal.expect("\n> ")
    terminal.interrupt()
    assert terminal.wait() == 130
    assert terminal.is_left_as_found()


@pytest.mark.slow
@pytest.mark.parametrize("while_answering", [False, True])
def test_sigterm_ends_it_always(chat, while_answering):
    terminal = chat()
    if while_answering:
        terminal.send("slow\n")
        terminal.expect("...")
    terminal.terminate()
    assert terminal.wait() == 143
    assert terminal.is_left_as_found()


@pytest.mark.slow
@pytest.mark.parametrize("typed", ["\x1b[200~abc", "\x1b[200~abc\ndef", "\x13"], ids=["paste", "lines", "ctrl-s"])
def test_sigterm_ends_it_where_readline_does_not_hear_of_it(chat, typed):
    """In a paste that was not finished, and where Ctrl-S stopped the terminal."""
    terminal = chat()
    terminal.send(typed)
    terminal.await_read()
    terminal.terminate()
    assert terminal.wait() == 143
    assert terminal.is_left_as_found()


@pytest.mark.slow
def test_what_was_typed_ahead_of_an_error_does_not_reach_the_shell(tmp_path):
    """A shell that runs the conversation and then reads its next command from the same terminal."""
    environment = {**os.environ, "PYC_HOME": str(tmp_path), "TERM": "xterm"}
    script = f'{sys.executable} {chat_program.__file__} run m --chat; read -t 0 && echo "typed ahead"; echo "done"'
    with Terminal(["bash", "-c", script], environment) as terminal:
        terminal.expect("\n> ")
        terminal.send("slow\n")
        terminal.expect("...")
        terminal.send("rm -rf everything\n")
        terminal.expect("everything")
        children = Path(f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children").read_text().split()
        os.kill(int(children[0]), 15)
        assert "typed ahead" not in terminal.expect("done")


@pytest.mark.slow
def test_several_lines_are_one_message(chat):
    terminal = chat()
    terminal.send("\x1b[200~if a:\r    b\r\x1b[201~\n")
    assert "'if a:\\n    b'" in terminal.expect("\n> "), "pasted"
    terminal.ask("one\\", "\n. ")
    assert "'one\\ntwo'" in terminal.ask("two")
    terminal.ask('"""', "\n. ")
    terminal.ask("/one", "\n. ")
    assert "'/one\\ntwo'" in terminal.ask('two"""')
    terminal.ask('"""one', "\n. ")
    terminal.send(b"\x04")
    assert "was not finished" in terminal.expect("\n> ")
    terminal.send("\x1b[A\n")
    assert "'/one\\ntwo'" in terminal.expect("\n> "), "the arrow key brings a whole message back"


def test_lines_that_arrive_at_once_are_a_paste_where_readline_has_none(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        editor = LineEditor(None)
        editor._joins_pasted_lines = True
        os.write(writing, b"one\n\ntwo\n")
        stream.reconfigure(line_buffering=True)
        monkeypatch.setattr(editor, "_input", lambda prompt: _unbuffered_line(reading))
        assert editor.read_message() == "one\n\ntwo"
        os.write(writing, b"three\\\n")
        os.close(writing)
        with pytest.raises(DroppedMessageError, match="not finished"):
            editor.read_message()


def _unbuffered_line(descriptor: int) -> str:
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(descriptor, 1)):
            raise EOFError
        line += byte
    return line[:-1].decode()


@pytest.mark.slow
def test_commands(chat, tmp_path):
    terminal = chat()
    assert "there is no such command; /help lists them, and //bogus" in terminal.ask("/bogus")
    assert "there is no such command (here it is /reset); /help" in terminal.ask("/clear")
    assert "'/bogus'" in terminal.ask("//bogus")
    assert "expected nothing behind it" in terminal.ask("/reset all")
    assert "/save! FILE" in terminal.ask("/help")
    assert "3 messages" in terminal.ask("seen")
    assert "taken back: seen" in terminal.ask("/undo")
    assert "3 messages" in terminal.ask("seen")
    terminal.ask("/system be brief")
    terminal.ask("/reset")
    assert "2 messages" in terminal.ask("seen")
    terminal.ask("/system")
    assert "3 messages" in terminal.ask("seen")
    assert "context: 43 of 120 tokens used; 2 turns" in terminal.ask("/stats")

    file, notes = tmp_path / "said.json", tmp_path / "said.md"
    assert "2 turns saved" in terminal.ask(f"/save {file}")
    assert f"{file} exists" in terminal.ask(f"/save {file}")
    assert "2 turns saved" in terminal.ask(f"/save! {file}")
    assert "2 turns saved" in terminal.ask(f"/save '{notes}'"), "as a shell takes a name"
    assert "is not a regular file; choose another name" in terminal.ask(f"/save {tmp_path}")
    assert notes.read_text().startswith("## User\n\nseen\n\n## Assistant\n\n2 messages\n")
    terminal.ask("/reset")
    assert "nothing was said" in terminal.ask("/undo")
    assert "2 turns loaded" in terminal.ask(f"/load {file}")
    assert "5 messages" in terminal.ask("seen")
    wrong_ones = ("/save", "/load", f"/load {notes}", f"/load {tmp_path}", f"/save {tmp_path}/no/a", "/save! /dev/null")
    for wrong in wrong_ones:
        assert "\npyc: " in terminal.ask(wrong), wrong
    assert "\npyc: /save: " in terminal.ask(f"/save {'x' * 300}")
    terminal.send("/quit\n")
    assert terminal.wait() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "said.json", "said.md"], "nothing half-written"


@pytest.mark.slow
def test_thinking_is_dimmed_and_not_kept(chat, tmp_path):
    terminal = chat()
    shown = terminal.ask("think")
    assert shown.replace("\x1b[0m\x1b[2m", "").endswith("\x1b[2m<think>hm</think>\x1b[0m\n\nwell")
    terminal.ask(f"/save {tmp_path / 'said.json'}")
    assert json.loads((tmp_path / "said.json").read_text())["messages"][1]["content"] == "well"
    terminal.ask("/think off")
    assert terminal.ask("think") == "think\nwell"
    assert "expected on or off" in terminal.ask("/think perhaps")
    assert chat("--no-thinking").ask("think") == "think\nwell"


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours(chat, variables):
    terminal = chat(**variables)
    assert terminal.ask("think").endswith("\n<think>hm</think>\n\nwell")
    terminal.send("/exit\n")
    assert terminal.wait() == 0
    assert "\x1b" not in terminal.shown


def test_what_a_model_says_does_not_take_over_the_terminal(chat):
    assert chat().ask("escape").endswith("\n\\x1b[31mred\\x1b]0;owned\\x07 \\u202eback")


def test_standard_output_elsewhere_gets_the_answers_and_nothing_else(chat):
    with tempfile.TemporaryFile() as answers:
        terminal = chat(stdout=answers.fileno())
        terminal.ask("hi")
        terminal.ask("escape")
        terminal.send(b"\x04")
        assert terminal.wait() == 0
        answers.seek(0)
        assert answers.read().decode() == "'hi'\n\x1b[31mred\x1b]0;owned\x07 \u202eback\n"


@pytest.mark.slow
def test_history_is_kept_for_the_owner_and_never_fails(chat, tmp_path):
    file = tmp_path / "home" / "chat_history"
    chat("--no-history").ask("secret")
    assert not file.exists()
    first = chat()
    first.ask("one\\", "\n. ")
    first.ask("two")
    first.ask(" not this")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == '"one\\ntwo"\n'
    file.write_text(file.read_text() + '{"damaged\n"\\ud800"\n[1]\n')
    second = chat()
    second.send("\x1b[A\x1b[A\n")  # past the half of a character, which no terminal can spell
    assert "'one\\ntwo'" in second.expect("\n> ")
    for home in ("/proc/no/such/home", "/dev/null"):
        terminal = chat(PYC_HOME=home)
        assert terminal.ask("hi") == "hi\n'hi'"


def test_it_reads_a_pipe_as_one_message(tmp_path):
    command = [sys.executable, chat_program.__file__, "run", "m.pyca", "--chat"]
    done = subprocess.run(command, input=b"one\ntwo", capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"'one\\ntwo'\n", b"")


def test_json_is_for_one_generation(chat):
    with pytest.raises(AssertionError, match="--json is for one generation"):
        chat("--json")
