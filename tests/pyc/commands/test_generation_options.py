"""pyc/commands/generation_options.py: the table of settings as options, with the words of the Python API where they
hold on the command line."""

import click
import pytest

from pyc.commands.generation_options import generation_options
from pyc.runtime.errors import RunError
from pyc.runtime.generation.settings import NUMBERS


@click.command()
@generation_options
def probe(**options):
    """Gives back what it got."""
    return options


def parsed(*arguments):
    return probe.main(list(arguments), standalone_mode=False)


def option(setting):
    return f"--{setting.name.replace('_', '-')}"


def test_defaults_are_those_of_the_table():
    assert parsed() == {**{s.name: s.default for s in NUMBERS}, "stop": (), "ignore_eos": False}


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_what_python_refuses_is_wrong_usage_with_its_words(setting):
    number = int if setting.kind == "integer" else float
    bad = ["x", "", "1e", "-101", *(["1.5", "9" * 100] if number is int and setting.high else ["nan"])]
    for text in bad:
        try:
            value = number(text)
        except ValueError:
            value = text
        with pytest.raises(RunError) as said:
            setting.checked(value)
        with pytest.raises(click.BadParameter) as caught:
            parsed(option(setting), text)
        expected = str(said.value).replace("Python's None is no limit", "leave -n out for 256")
        assert (caught.value.exit_code, caught.value.message) == (2, expected)
        assert "Python" not in caught.value.message


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_what_python_takes_is_taken(setting):
    value = setting.low if setting.kind == "integer" else (setting.low + setting.high) / 2
    assert parsed(option(setting), str(value))[setting.name] == value


def test_help_says_bounds_and_defaults():
    text = " ".join(click.Context(probe).get_help().split())
    for words in (
        "-n, --max-tokens INTEGER Tokens to generate at most. [at least 1; default: 256]",
        "--temperature FLOAT 0 is greedy, 1 leaves the model's distribution as it is. [0 to 100; default: the model's",
        "--top-p FLOAT Keep the likeliest tokens up to this mass. [above 0, at most 1; default: the model's own]",
        "--logprobs INTEGER Report log-probabilities with this many alternatives (with --json). [0 to 1000; default:",
    ):
        assert words in text
