"""runtime/generation/settings.py: the table, and that Python's signature and the parameters agree with it."""

import inspect
import math
from dataclasses import fields

import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.generation.sampling import SamplingParams
from pyc.runtime.generation.settings import MAX_TOKENS, NUMBERS, SAMPLING, GenerateSettings, Setting
from pyc.runtime.model import Model

BY_NAME = {setting.name: setting for setting in NUMBERS}


def test_the_signature_of_generate_is_the_table() -> None:
    parameters = inspect.signature(Model.generate).parameters
    named = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    assert named == list(GenerateSettings.__annotations__)
    assert [name for name in named if name in BY_NAME] == list(BY_NAME)
    assert {name: parameters[name].default for name in BY_NAME} == {name: s.default for name, s in BY_NAME.items()}


def test_the_parameters_of_sampling_are_the_table() -> None:
    assert [field.name for field in fields(SamplingParams)] == [setting.name for setting in SAMPLING]
    neutral = SamplingParams()
    for setting in SAMPLING:
        if setting.default is not None:
            assert getattr(neutral, setting.name) == setting.default


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_bounds(setting: Setting) -> None:
    low, high = setting.low, setting.high
    step = 1 if setting.kind == "integer" else 1e-9
    assert setting.checked(low + (step if setting.is_open else 0)) is not None
    bad = [low if setting.is_open else low - step, True, None, "1", math.nan, [1]]
    if high is None:
        assert setting.checked(10**400) == 10**400
    else:
        assert setting.checked(high) == high
        bad += [high + 1, math.inf, 10**400]
    for value in bad:
        with pytest.raises(RunError, match=rf"^{setting.name}: got .*, expected .* \({setting.meaning[:10]}"):
            setting.checked(value)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("repetition_penalty", -1.0, "repetition_penalty: got -1.0, expected 0.01 to 100 (1 is none)"),
    ("top_p", 0, "top_p: got 0, expected above 0, at most 1 (1 keeps every token; temperature 0 is greedy)"),
    ("top_k", 1.5, "top_k: got 1.5, expected an integer (0 keeps every token)"),
    ("seed", 1 << 64, f"seed: got an integer of more than 64 bits, expected 0 to {2**64 - 1} (any integer of 64 bits)"),
    ("max_tokens", 0, "max_tokens: got 0, expected at least 1 (tokens at most; Python's None is no limit)"),
])  # fmt: skip
def test_messages(name: str, value: float, message: str) -> None:
    with pytest.raises(RunError) as caught:
        BY_NAME[name].checked(value)
    assert str(caught.value) == message


def test_every_default_is_allowed_and_every_help_a_sentence() -> None:
    assert MAX_TOKENS.default == 256
    for setting in NUMBERS:
        assert setting.default is None or setting.checked(setting.default) == setting.default
        assert (setting.default is None) == bool(setting.otherwise)
        assert setting.help.endswith(".")
