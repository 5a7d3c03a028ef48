"""str.format in chat templates."""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_markup import Markup, mark
from pyc.runtime.text.authored_text import TEMPLATE, UNKNOWN, AuthoredText, adopt, derive, is_templates
from pyc.runtime.text.chat.filters import join_text
from pyc.runtime.text.chat.limits import Meter
from pyc.runtime.text.chat.operation_costs import check_format_spec

_FIELD = re.compile(r"\{(?:[^\[{}:!]|\[[^\]]*+)*+(?:![\s\S])?(?::[^{}]*+)?\}")
_FIELD_CHARACTERS = 64
"""What is kept of a field is as large as so many."""
_Parsed = tuple[str, str | None, str | None, str | None]


class BoundedFormatter(SandboxedFormatter):
    """str.format without wide fields, whose result knows who wrote it."""

    def __init__(self, environment: SandboxedEnvironment, meter: Meter) -> None:
        super().__init__(environment)
        self._meter = meter
        self._escapes = False
        self._letters: list[AuthoredText] = []

    def format_text(self, template: str, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        """template.format(*args, **kwargs), a field after the other. Markup escapes each field."""
        if isinstance(template, Markup):
            self._escapes = True
            return mark(self._formatted(str(template), args, kwargs))
        return self._formatted(template, args, kwargs)

    def _formatted(self, template: str, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        self._meter.reserve(_FIELD_CHARACTERS * (template.count("{") + template.count("}")))
        parsed = cast("list[_Parsed]", list(self._meter.each(self.parse(template))))
        if any(spec and "{" in spec for _, _, spec, _ in parsed):  # fields inside of fields
            text = self.vformat(template, args, kwargs)
            return derive(text, template, *args, *kwargs.values(), *self._letters)
        pieces: list[str] = []
        automatic = 0
        for (literal, field, spec, conversion), (start, end) in zip(parsed, _places(template, parsed), strict=True):
            middle = start + len(literal)
            pieces.append(template[start:middle])
            if field is None:
                continue
            if not field or field[0] in ".[":
                field, automatic = f"{automatic}{field}", automatic + 1
            value = self.convert_field(self.get_field(field, args, kwargs)[0], conversion)
            shown, written = self.format_field(value, spec or ""), template[middle:end]
            pieces.append(shown if not spec or is_templates(written) else derive(str.__str__(shown), shown, written))
        return join_text(self._meter, AuthoredText("", TEMPLATE), pieces, convert=False)

    def format_field(self, value: object, format_spec: str) -> str:
        """One field."""
        self._meter.step()
        check_format_spec(format_spec)
        if self._escapes and format_spec and isinstance(value, Markup):
            raise ValueError("Unsupported format specification for Markup.")  # as markupsafe says it
        text = self._meter.text(value) if not format_spec else format(value, format_spec)
        self._meter.reserve(len(text))
        if format_spec.endswith("c") and not isinstance(value, str):  # a number, which becomes a letter
            self._letters.append(AuthoredText(text, UNKNOWN))
            text = self._letters[-1]
        shown = derive(text, value) if type(text) is str else text
        return self._meter.escaped(shown) if self._escapes else shown

    def convert_field(self, value: object, conversion: str | None) -> object:
        """`!r`, `!s` and `!a`."""
        if conversion is not None:
            self._meter.reserve(self._meter.size(value).characters)
        return adopt(super().convert_field(value, cast("str", conversion)), value)


def _places(template: str, parsed: Sequence[_Parsed]) -> list[tuple[int, int]]:
    """Where each literal of a format begins and the field behind it ends. Raises RunError where that is not what was
    parsed."""
    places: list[tuple[int, int]] = []
    position = 0
    told = RunError("chat template: a format whose fields cannot be told from its text")
    for literal, field, spec, conversion in parsed:
        start, position = position, position + len(literal)
        if not template.startswith(literal, start):
            raise told
        if field is None:
            last = str.__getitem__(template, slice(position - 1, position + 1))
            position += last in ("{{", "}}")  # a brace, which is written as two
        else:
            written = f"{{{field}" + (f"!{conversion}" if conversion else "")
            found = _FIELD.match(template, position)
            if found is None or found[0] not in (f"{written}:{spec}}}", f"{written}}}"):
                raise told
            position = found.end()
        places.append((start, position))
    if position != len(template):
        raise told
    return places
