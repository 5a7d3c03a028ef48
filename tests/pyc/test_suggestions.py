"""pyc/suggestions.py: commands and options that other tools have lead to ours."""

import re

import pytest

from pyc.cli import COMMANDS, main
from pyc.suggestions import COMMANDS_ELSEWHERE

ADAPTED = "pyc init CHECKPOINT --adapter FOLDER"


@pytest.mark.parametrize("word", [*COMMANDS_ELSEWHERE, "Chat"])
def test_commands_of_other_tools_are_told_where_ours_are(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    err = capsys.readouterr().err
    assert err.endswith(f"No such command {word!r}. {COMMANDS_ELSEWHERE[word.lower()]}\n")
    assert word.lower() not in COMMANDS and "Did you mean" not in err


def test_what_is_named_in_place_of_other_commands_is_there() -> None:
    for text in COMMANDS_ELSEWHERE.values():
        for name in re.findall(r"`pyc ([a-z]+)", text):
            assert name in COMMANDS


@pytest.mark.parametrize(
    ("option", "meant"), [("--temp", "Did you mean '--temperature'?"), ("--max-", "Did you mean '--max-tokens'?")]
)
def test_the_start_of_an_option_names_it_and_none_that_looks_like_it(
    option: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "model.pyca", option, "0"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"Error: No such option {option!r}. {meant}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run -m model.pyca", "ARTIFACT is named without an option."),
        ("bench --model model.pyca", "ARTIFACT is named without an option."),
        ("build --model model.yaml", "RECIPE is named without an option."),
        ("run model.pyca -c 2048", "Did you mean '--context'?"),
        ("run model.pyca --gpus 1", "A GPU runs all layers of an artifact that was built for it: --backend cuda."),
        ("run model.pyca --ctx-size 2048", "Did you mean '--context'?"),
        ("run model.pyca -cnv", "Did you mean '--chat'?"),
        ("run model.pyca -sys text", "Did you mean '--system'?"),
        ("run model.pyca -i", "Did you mean '--chat'?"),
        ("run model.pyca -f prompt.txt", "Did you mean '--prompt-file'?"),
        ("eval model.pyca -f text.txt", "Did you mean '--text'?"),
        ("run model.pyca --n-predict 8", "Did you mean '--max-tokens'?"),
        ("run model.pyca --repeat-penalty 1.1", "Did you mean '--repetition-penalty'?"),
        ("verify m.pyca -v", "It goes before the command: pyc -v COMMAND ..."),
        ("build m.yaml --quiet", "It goes before the command: pyc -q COMMAND ..."),
        ("build m.yaml -q", "It goes before the command: pyc -q COMMAND ..."),
        ("init checkpoint -q", "Did you mean '--scheme'?"),
        ("run --version", "It goes before the command: pyc --version"),
        ("run m.pyca --format json", "Did you mean '--json'?"),
        ("run m.pyca -ngl 99", "A GPU runs all layers of an artifact that was built for it: --backend cuda."),
        ("run m.pyca -ngl99", "A GPU runs all layers of an artifact that was built for it: --backend cuda."),
        ("run m.pyca --gpu-layers 9", "A GPU runs all layers of an artifact that was built for it: --backend cuda."),
        ("build m.yaml -j 4", "Did you mean '--workers'?"),
        ("run m.pyca --lora x", f"Adapters are fused by a build: {ADAPTED}; docs/adapters.md."),
        ("run m.pyca --grammar x", "Nothing forces an answer to follow a grammar or a schema: check what you parse."),
        ("run m.pyca --draft 4", "There is no speculative decoding yet."),
        ("run m.pyca -md draft.pyca", "There is no speculative decoding yet."),
        ("run m.pyca -hf Qwen/Qwen3-0.6B", "A model of the hub is built first: pyc build ORG/NAME --download."),
        ("run m.pyca -fa", "Attention needs no option."),
        ("run m.pyca --num_ctx 9", "Did you mean '--context'?"),
        ("init checkpoint --quantization int8", "Did you mean '--scheme'?"),
        ("build m.yaml --scheme int8", "How weights are stored is set so: --set quantize.scheme=int4-g32."),
        ("verify model.pyca --n-gpu-layers 99", None),
        ("verify model.pyca --ctx-size 2048", None),
    ],
)
def test_options_of_other_tools_lead_to_ours(words, sentence, capsys) -> None:
    assert main(words.split()) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    option = next(word for word in words.split() if word.startswith("-"))
    named = option.rstrip("9") if option.startswith(("--", "-ngl")) else option[:2]
    named = "-f" if option == "-hf" else named  # -h is there
    assert line == f"Error: No such option {named!r}.{f' {sentence}' if sentence else ''}"
