"""`pyc run --prompts`: what each prompt gives is what it gives alone, and what is wrong with a file names its line."""

import io
import json
import sys

import pytest
from running_models import json_lines

from pyc.commands.many_prompts import read_prompts

PROMPTS = ["the quick", "brown fox", "jumps", "over the lazy dog", "and", "back again"]


def written(tmp_path, text, name="prompts.txt"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def alone(pyc, artifact, *arguments):
    code, out, err = pyc("run", artifact, "-n", "8", *arguments)
    assert code == 0, err
    return out


def test_texts_in_the_order_of_the_file(pyc, decoder_artifact, tmp_path):
    path = written(tmp_path, "\n\n".join(PROMPTS) + "\n")
    out = alone(pyc, decoder_artifact, "--prompts", path)
    expected = [f"==> {n}: {p} <==\n{alone(pyc, decoder_artifact, '-p', p)}" for n, p in enumerate(PROMPTS, 1)]
    assert out == "\n".join(expected)
    echoed = alone(pyc, decoder_artifact, "--prompts", path, "--echo")
    assert f"==> 1: the quick <==\n{alone(pyc, decoder_artifact, '-p', 'the quick', '--echo')}" in echoed


def test_json_lines_as_prompts_are_finished(pyc, decoder_artifact, tmp_path):
    lines = ['"the quick"', '{"prompt": "brown fox", "id": "b"}']
    lines.append('{"id": 7, "messages": [{"role": "user", "content": "hi"}]}')
    path = written(tmp_path, "\n".join(lines), "p.jsonl")
    code, out, err = pyc("run", decoder_artifact, "--prompts", path, "--json", "-n", "8")
    assert code == 0, err
    found = sorted(json_lines(out), key=lambda document: document["index"])
    assert [one.get("id") for one in found] == [None, "b", 7]
    each = (("-p", "the quick"), ("-p", "brown fox"), ("-p", "hi", "--chat"))
    for document, arguments in zip(found, each, strict=True):
        single = json_lines(alone(pyc, decoder_artifact, *arguments, "--json"))[-1]
        for key in ("text", "finish_reason", "prompt_tokens", "completion_tokens"):
            assert document[key] == single[key]


def test_lines_that_users_say(pyc, decoder_artifact, tmp_path):
    out = alone(pyc, decoder_artifact, "--prompts", written(tmp_path, "hi\n"), "--chat", "--system", "be short")
    assert out == "==> 1: hi <==\n" + alone(pyc, decoder_artifact, "-p", "hi", "--chat", "--system", "be short")


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_a_system_text_stands_before_conversations_that_have_none(role, tmp_path):
    said = [{"role": "user", "content": "hi"}]
    messages = said if role == "user" else [{"role": role, "content": "be long"}, *said]
    lines = [json.dumps({"messages": messages}), '"hi"', '{"prompt": "hi"}']
    path = written(tmp_path, "\n".join(lines), "p.jsonl")
    first, *others = (entry.prompt for entry in read_prompts(path, chat=True, system="be short"))
    system = {"role": "system", "content": "be short"}
    assert first == ([system, *said] if role == "user" else messages)
    assert others == [[system, *said]] * 2
    assert [entry.prompt for entry in read_prompts(path, chat=True, system=None)] == [messages, said, said]


def test_standard_input_and_statistics(pyc, decoder_artifact, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(PROMPTS).encode())))
    code, out, err = pyc("run", decoder_artifact, "--prompts", "-", "--stats", "-n", "3", "--ignore-eos")
    assert code == 0 and out.count("<==") == len(PROMPTS)
    assert f"{len(PROMPTS)} prompts of " in err and f"; {3 * len(PROMPTS)} tokens in " in err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "\n \n", "there is no prompt in it; write one a line"),
        ("p.jsonl", '"a"\n{"prompt": ', "line 2: not JSON"),
        ("p.jsonl", "[" * 100_000, "line 1: not JSON"),
        ("p.jsonl", '{"prompt": "a", "prompt": "b"}', "line 1: not JSON (the name 'prompt' occurs twice"),
        ("p.jsonl", "5", 'line 1: expected a JSON string, {"prompt": "..."}'),
        ("p.jsonl", '""', "line 1: expected a JSON string"),
        ("p.jsonl", "{}", "line 1: expected a JSON string"),
        ("p.jsonl", '{"prompt": "a", "temperature": 1}', "line 1: expected a JSON string"),
        ("p.jsonl", '{"prompt": ["a"]}', "line 1: expected a JSON string"),
        ("p.jsonl", '{"messages": []}', "line 1: expected a JSON string"),
        ("p.jsonl", '{"prompt": "a", "id": 1.5}', 'line 1: "id" is neither text nor an integer'),
    ],
)
def test_refusals_name_the_line(pyc, decoder_artifact, tmp_path, name, text, message):
    code, _, err = pyc("run", decoder_artifact, "--prompts", written(tmp_path, text, name))
    assert code == 2 and message in err


def test_a_prompt_that_is_too_long_says_which(pyc, decoder_artifact, tmp_path):
    code, out, err = pyc("run", decoder_artifact, "--prompts", written(tmp_path, "a\n\n" + "word " * 2000))
    assert (code, out) == (9, "") and "prompts.txt: line 3: context: the prompt's" in err
    for other in (("-p", "x"), ("--prompt-file", __file__), ("--json", "--logprobs", "1")):
        assert pyc("run", decoder_artifact, "--prompts", __file__, *other)[0] == 2


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(pyc, decoder_artifact, tmp_path):
    for name, text in (("p.txt", "hi\n"), ("p.jsonl", '"hi"\n')):
        out = alone(pyc, decoder_artifact, "--prompts", written(tmp_path, "\ufeff" + text, name))
        assert out == alone(pyc, decoder_artifact, "--prompts", written(tmp_path, text, name))


def test_a_document_of_the_file_is_json(pyc, decoder_artifact, tmp_path):
    path = written(tmp_path, json.dumps("Grüße \u2028") + "\n", "p.jsonl")
    assert json_lines(alone(pyc, decoder_artifact, "--prompts", path, "--json"))[0]["index"] == 0
