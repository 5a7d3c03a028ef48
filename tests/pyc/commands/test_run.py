"""pyc run: streams text, tells JSON, keeps to the exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys

import chat_program
import numpy as np
import pytest
from running_models import CONTEXT, json_lines
from terminals import Terminal

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import add_trusted, remove_trusted, signing_key
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.model import load


def test_text_streams_to_standard_output(pyc, decoder_artifact):
    code, out, err = pyc("run", decoder_artifact, "-p", "the cat", "-n", 12, "--stop", "never")
    with load(decoder_artifact) as model:
        text = "".join(token.text for token in model.generate("the cat", max_tokens=12))
    assert (code, err) == (0, "")
    assert out == text + "\n"


def test_echo_prints_the_prompt_first(pyc, decoder_artifact):
    _, plain, _ = pyc("run", decoder_artifact, "-p", "the cat", "-n", 4)
    assert pyc("run", decoder_artifact, "-p", "the cat", "-n", 4, "--echo") == (0, "the cat" + plain, "")
    code, _, err = pyc("run", decoder_artifact, "-p", "the cat", "--echo", "--json")
    assert code == 2
    assert "--echo is for plain text" in err


def test_weights_that_are_copied_say_the_same(pyc, decoder_artifact):
    arguments = ("run", decoder_artifact, "-p", "the cat", "-n", 4)
    assert pyc(*arguments, "--no-mmap") == pyc(*arguments, "--mmap")


def test_json_lines(pyc, decoder_artifact):
    arguments = ("--json", "--logprobs", 2, "--temperature", 0.9, "--top-k", 50, "--seed", 3)
    code, out, _ = pyc("run", decoder_artifact, "-p", "the cat", "-n", 6, *arguments)
    *tokens, whole = json_lines(out)
    assert code == 0
    assert "".join(token["text"] for token in tokens) == whole["text"]
    assert whole["completion_tokens"] == len(tokens) == 6
    assert whole["finish_reason"] == "length"
    assert whole["prompt_tokens"] > 0
    assert 0 < whole["ttft_s"] <= whole["total_s"]
    for token in tokens:
        assert token["logprob"] < 0
        best, second = token["top_logprobs"]
        assert best["logprob"] >= second["logprob"]
        assert best["logprob"] >= token["logprob"]
    again = json_lines(pyc("run", decoder_artifact, "-p", "the cat", "-n", 6, *arguments)[1])
    assert [token["id"] for token in again[:-1]] == [token["id"] for token in tokens]


def test_prompts_from_a_file_and_standard_input(pyc, decoder_artifact, tmp_path, monkeypatch):
    expected = pyc("run", decoder_artifact, "-p", "the dog", "-n", 5)[1]
    file = tmp_path / "prompt.txt"
    file.write_text("the dog")
    assert pyc("run", decoder_artifact, "--prompt-file", file, "-n", 5)[1] == expected
    with file.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert pyc("run", decoder_artifact, "-n", 5)[1] == expected
        stream.seek(0)
        assert pyc("run", decoder_artifact, "-n", 5, "--prompt-file", "-")[1] == expected
        code, _, err = pyc("run", decoder_artifact, "-n", 5)
        assert (code, "standard input: the prompt is empty" in err) == (2, True)
    for option in ((), ("--prompts", "-"), ("--prompts", "/dev/stdin"), ("--prompt-file", "-")):
        code, _, err = pyc("run", "-", *option)
        assert (code, "the artifact comes from standard input, so give the prompt with -p" in err) == (2, True)
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = pyc("run", decoder_artifact)
    assert (code, "standard input is closed; expected the prompt" in err) == (2, True)


def test_one_turn_of_chat(pyc, decoder_artifact):
    code, out, _ = pyc("run", decoder_artifact, "--chat", "--system", "terse", "-p", "hi", "-n", 5)
    messages = [{"role": "system", "content": "terse"}, {"role": "user", "content": "hi"}]
    with load(decoder_artifact) as model:
        text = "".join(token.text for token in model.generate(messages, max_tokens=5))
    assert (code, out) == (0, text + "\n")


@pytest.mark.slow
def test_a_conversation_with_a_compiled_model_outlives_its_context(decoder_artifact):
    command = [sys.executable, "-m", "pyc", "run", str(decoder_artifact), "--chat", "-n", "4", "--stats"]
    with Terminal([*command, "--ignore-eos"], os.environ) as terminal:
        terminal.expect("\n> ")
        prompts = []
        for _ in range(6):
            shown = terminal.ask("hi")
            prompts.append(int(shown.rpartition("\nprompt ")[2].split()[0]))
        assert prompts[1] > prompts[0], "the second turn's prompt holds the first turn"
        assert max(prompts) < CONTEXT
        assert f"the context of {CONTEXT} tokens is full: the model no longer sees the oldest" in terminal.shown
        terminal.send(b"\x04")
        assert terminal.wait() == 0


def on_a_terminal(*arguments):
    return Terminal([sys.executable, chat_program.__file__, "run", "m.pyca", *arguments], os.environ)


def test_ctrl_c_ends_the_line_and_the_command():
    with on_a_terminal("-p", "slow") as terminal:
        terminal.expect("...")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert re.search(r"\.\^C\.*\npyc: interrupted\n$", terminal.shown)  # a word may come between key and signal


def test_a_prompt_typed_at_a_terminal_is_asked_for():
    with on_a_terminal() as terminal:
        terminal.expect("pyc: reading the prompt from the terminal; end with Ctrl-D\n")
        terminal.send("escape")
        terminal.send(b"\x04\x04")
        assert terminal.wait() == 0
        assert terminal.shown.endswith("\\x1b[31mred\\x1b]0;owned\\x07 \\u202eback\n")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_and_text_survive_any_encoding(encoding):
    command = [sys.executable, chat_program.__file__, "run", "m.pyca", "-p", "escape"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, check=True)
    *letters, whole = [json.loads(line) for line in done.stdout.decode(encoding).splitlines()]
    assert "".join(letter["text"] for letter in letters) == whole["text"] == "\x1b[31mred\x1b]0;owned\x07 \u202eback"
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert done.stdout.decode(encoding).replace("\\u202e", "\u202e") == whole["text"] + "\n"


def test_a_switch_that_changes_nothing_says_so(pyc, decoder_artifact):
    plain = pyc("run", decoder_artifact, "--chat", "-p", "hi", "-n", 3)
    code, out, err = pyc("run", decoder_artifact, "--chat", "-p", "hi", "-n", 3, "--no-thinking")
    assert (code, out) == plain[:2]
    assert err.startswith("pyc: --no-thinking changes nothing: ")


def test_stats_go_to_standard_error(pyc, decoder_artifact):
    _, out, err = pyc("run", decoder_artifact, "-p", "the", "-n", 4, "--stats")
    assert "first token after" not in out
    assert "4 tokens in" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("-p", "x" * 200), 9, f"leave no room in this model's context of {CONTEXT}"),
        (("-p", "x", "--context", "1000"), 9, "context: got 1000"),
        (("-p", "x", "--temperature", "-1"), 2, "temperature: got -1.0, expected 0 to 100 (0 is greedy, 1 leaves"),
        (("-p", "x", "--isa", "z80"), 9, "z80"),
        (("-p", "x", "--prompt-file", __file__), 2, "give one of --prompt, --prompt-file and --prompts"),
        (("-p", "x", "--system", "s"), 2, "--system is for --chat"),
        (("-p", "x", "--logprobs", "2"), 2, "--logprobs is for --json"),
        (("-p", "x", "-n", "0"), 2, "max_tokens: got 0, expected at least 1 (tokens"),
        (("-p", "x", "-p", "y"), 2, "--prompt: given 2 times"),
        (("--prompt-file", __file__, "--prompt-file", __file__), 2, "--prompt-file: given 2 times"),
        (("-p", ""), 2, "--prompt: the prompt is empty"),
        (("--chat", "-p", ""), 2, "--prompt: the prompt is empty"),
        (("--prompt-file", "/dev/null"), 2, "/dev/null: the prompt is empty"),
        (("--prompt-file", "/"), 2, "is a directory"),
        (("--prompt-file", "/no/such/file"), 2, "does not exist"),
        (("-p", "x", "--stop", ""), 2, "--stop: got an empty text"),
        (("-p", "\udcff"), 2, "--prompt: not UTF-8 text at character 0"),
        (("-p", "x", "--thinking"), 2, "are for --chat"),
    ],
)
def test_refusals(pyc, decoder_artifact, arguments, code, message):
    got, out, err = pyc("run", decoder_artifact, *arguments)
    assert got == code
    assert message in err
    assert out == ""


@pytest.mark.parametrize("given", ["nothing", "a message", "not yet"])
def test_a_model_without_a_chat_template_says_so_before_it_reads(given, pyc, artifacts, tiny_copy, monkeypatch):
    """Whatever standard input has, and where nobody has written to it yet."""
    checkpoint = tiny_copy("llama")
    (checkpoint / "chat_template.jinja").unlink()
    artifact = artifacts(checkpoint).path
    with open_artifact(artifact) as opened:
        add_trusted(PublicKey(opened.signature.public_key))
    reading, writing = os.pipe()
    os.write(writing, b"hello" if given == "a message" else b"")
    if given != "not yet":
        os.close(writing)
    with open(reading) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        code, out, err = pyc("run", artifact, "--chat")
    if given == "not yet":
        os.close(writing)
    assert (code, out, "this model has no chat template" in err) == (9, "", True), err


def test_a_model_with_a_chat_template_is_asked_what_comes(pyc, decoder_artifact, tmp_path, monkeypatch):
    (tmp_path / "message").write_text("the dog")
    expected = pyc("run", decoder_artifact, "--chat", "-p", "the dog", "-n", 5)
    with (tmp_path / "message").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert pyc("run", decoder_artifact, "--chat", "-n", 5)[:2] == expected[:2]
        code, _, err = pyc("run", decoder_artifact, "--chat")
        assert (code, "standard input: the prompt is empty" in err) == (2, True), err


def test_text_that_is_not_utf8(pyc, decoder_artifact, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"ab\xff")
    code, _, err = pyc("run", decoder_artifact, "--prompt-file", file)
    assert code == 2
    assert "not UTF-8 text at byte 2" in err


def test_an_encoder_does_not_run(pyc, encoder_artifact):
    for arguments in (("-p", "x"), ("--chat",), ()):
        code, _, err = pyc("run", encoder_artifact, *arguments)
        assert code == 9
        assert "use pyc embed" in err


def test_an_artifact_of_an_unknown_key_is_not_executed(pyc, decoder_artifact):
    assert pyc("run", decoder_artifact, "-p", "x", "-n", 1)[0] == 0
    fingerprint = json.loads(pyc("inspect", decoder_artifact, "--json")[1])["signature"]["fingerprint"]
    assert pyc("trust", "remove", fingerprint)[0] == 0
    code, out, err = pyc("run", decoder_artifact, "-p", "x")
    assert (code, out) == (12, "")
    assert "not trusted" in err


def test_load_may_pin_the_key(pyc, decoder_artifact):
    with open_artifact(decoder_artifact) as artifact:
        key = PublicKey(artifact.signature.public_key)
    remove_trusted(key.fingerprint)
    with load(decoder_artifact, trust=key.text()) as model:
        assert model.logits([1, 2]).shape == (2, model.info.vocab_size)
    (decoder_artifact.parent / "key.pub").write_text(key.text() + "\n")
    load(decoder_artifact, trust=decoder_artifact.parent / "key.pub").close()
    other = signing_key("other").public
    with pytest.raises(ArtifactError, match=f"signed by key {key.fingerprint}, expected key {other.fingerprint}"):
        load(decoder_artifact, trust=other.text())
    with pytest.raises(ArtifactError, match="not a public key"):
        load(decoder_artifact, trust="skip")


def test_a_smaller_context_and_prefill_against_steps(pyc, decoder_artifact):
    with load(decoder_artifact, context=20) as model:
        tokens = list(model.generate([1, 2, 3], max_tokens=None, ignore_eos=True))
        assert len(tokens) == 17
        ids = [1, 2, 3, *[token.id for token in tokens]]
        logits = model.logits(ids)
        for position, token in enumerate(tokens, 2):
            ranked = np.sort(logits[position])
            if ranked[-1] - ranked[-2] > 1e-3:  # else rounding may differ between a prefill and a step
                assert token.id == int(logits[position].argmax())
    with pytest.raises(RunError, match="threads: got 0"):
        load(decoder_artifact, threads=0)


def test_a_missing_artifact(pyc, tmp_path):
    code, _, err = pyc("run", tmp_path / "none.pyca", "-p", "x")
    assert code == 10
    assert "none.pyca" in err


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("hello",), "-p hello"),
        (("the", "cat", "-n", "2"), "-p 'the cat'"),
        (("-p", "the", "cat's", "--echo"), "-p 'the cat'\"'\"'s'"),
    ],
)
def test_a_prompt_without_its_option_is_told_how_it_is_given(words, written, pyc, decoder_artifact):
    code, out, err = pyc("run", decoder_artifact, *words)
    assert (code, out) == (2, "") and err.splitlines()[-1].startswith("Error: Got unexpected extra argument (")
    assert err.endswith(f"; a prompt is one argument: {written}\n")
    assert pyc("run", decoder_artifact, *shlex.split(written), "-n", "1")[0] == 0
