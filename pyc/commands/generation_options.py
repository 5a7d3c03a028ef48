"""The options of a generation, made of `runtime/generation/settings.py`: the same names, bounds and messages."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import click

from pyc.runtime.errors import RunError
from pyc.runtime.generation.settings import DEFAULT_MAX_TOKENS, NUMBERS, Setting

_Command = TypeVar("_Command", bound=Callable[..., object])

_SHORT = {"max_tokens": "-n"}
_REMARKS = {"logprobs": " (with --json)"}
_MEANINGS = {"max_tokens": f"tokens at most; leave -n out for {DEFAULT_MAX_TOKENS}"}
"""What messages say here of a value that Python has other ways to say."""


class SettingType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions of click only
    """A number within a setting's bounds. Others are wrong usage, in the words of the Python API but for _MEANINGS."""

    def __init__(self, setting: Setting) -> None:
        self._setting = replace(setting, meaning=_MEANINGS.get(setting.name, setting.meaning))
        self.name = "integer" if setting.kind == "integer" else "float"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """The number that was typed."""
        given = value
        if isinstance(value, str):
            try:
                given = int(value) if self._setting.kind == "integer" else float(value)
            except ValueError:
                given = value  # refused below, as it was typed
        try:
            return self._setting.checked(given)
        except RunError as error:
            self.fail(str(error), param, ctx)


def generation_options(command: _Command) -> _Command:
    """Add an option for each setting of a generation that the command line has, by the names of Model.generate."""
    click.option("--ignore-eos", is_flag=True, help="Go on after an end-of-sequence token.")(command)
    click.option(
        "--stop",
        multiple=True,
        help="End before this text, or at this special token, such as '<|im_end|>'; may be given several times.",
    )(command)
    for setting in reversed(NUMBERS):
        default = setting.otherwise if setting.default is None else f"{setting.default:g}"
        click.option(
            *filter(None, [_SHORT.get(setting.name)]),
            f"--{setting.name.replace('_', '-')}",
            type=SettingType(setting),
            default=setting.default,
            help=f"{setting.help[:-1]}{_REMARKS.get(setting.name, '')}.  [{setting.bounds}; default: {default}]",
        )(command)
    return command
