"""str.format in chat templates."""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from pyc.runtime.text.authored_markup import Markup, mark
from pyc.runtime.text.authored_text import TEMPLATE, UNKNOWN, AuthoredText, adopt, derive, is_templates
from pyc.runtime.text.chat.filters import check_format_spec, join_text
from pyc.runtime.text.chat.limits import Meter

_FIELD = re.compile(r"\{(?:[^\[{}:!]|\[[^\]]*+)*+(?:![^{}])?(?::[^{}]*+)?\}")
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
        self._meter.charge(_FIELD_CHARACTERS * (template.count("{") + template.count("}")))
        if any(spec and "{" in spec for _, _, spec, _ in self.parse(template)):  # fields inside of fields
            text = self.vformat(template, args, kwargs)
            return derive(text, template, *args, *kwargs.values(), *self._letters)
        parsed = cast("list[_Parsed]", list(self._meter.each(self.parse(template))))
        places = _places(template, parsed)
        whole = template if places is not None else AuthoredText(template, UNKNOWN)
        pieces: list[str] = []
        automatic = 0
        for number, (literal, field, spec, conversion) in enumerate(parsed):
            start, end = (0, len(template)) if places is None else places[number]
            plain = whole[start : start + len(literal)]
            pieces.append(plain if places is not None else AuthoredText(literal, UNKNOWN))
            if field is None:
                continue
            written = whole[start + len(literal) : end]
            if not field or field[0] in ".[":
                field, automatic = f"{automatic}{field}", automatic + 1
            value = self.convert_field(self.get_field(field, args, kwargs)[0], conversion)
            shown = self.format_field(value, spec or "")
            pieces.append(shown if not spec or is_templates(written) else derive(str.__str__(shown), shown, written))
        return join_text(self._meter, AuthoredText("", TEMPLATE), pieces, convert=False)

    def format_field(self, value: object, format_spec: str) -> str:
        """One field."""
        self._meter.step()
        check_format_spec(format_spec)
        if self._escapes and format_spec and isinstance(value, Markup):
            raise ValueError("Unsupported format specification for Markup.")  # as markupsafe says it
        text = self._meter.text(value) if not format_spec else format(value, format_spec)
        self._meter.charge(len(text))
        if format_spec.endswith("c") and not isinstance(value, str):  # a number, which becomes a letter
            self._letters.append(AuthoredText(text, UNKNOWN))
            text = self._letters[-1]
        shown = derive(text, value) if type(text) is str else text
        return self._meter.escaped(shown) if self._escapes else shown

    def convert_field(self, value: object, conversion: str | None) -> object:
        """`!r`, `!s` and `!a`."""
        if conversion is not None:
            self._meter.charge(self._meter.size(value).characters)
        return adopt(super().convert_field(value, cast("str", conversion)), value)


def _places(template: str, parsed: Sequence[_Parsed]) -> list[tuple[int, int]] | None:
    """Where each literal of a format begins and the field behind it ends; None where that is not what was parsed."""
    places: list[tuple[int, int]] = []
    position = 0
    for literal, field, spec, conversion in parsed:
        start, position = position, position + len(literal)
        if not template.startswith(literal, start):
            return None
        if field is None:
            last = str.__getitem__(template, slice(position - 1, position + 1))
            position += last in ("{{", "}}")  # a brace, which is written as two
        else:
            written = f"{{{field}" + (f"!{conversion}" if conversion else "")
            found = _FIELD.match(template, position)
            if found is None or found[0] not in (f"{written}:{spec}}}", f"{written}}}"):
                return None
            position = found.end()
        places.append((start, position))
    return places if position == len(template) else None
