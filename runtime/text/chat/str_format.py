"""str.format in chat templates."""

from collections.abc import Mapping, Sequence
from typing import cast

from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from pyc.runtime.text.authored_markup import Markup, mark
from pyc.runtime.text.authored_text import TEMPLATE, UNKNOWN, AuthoredText, adopt, derive
from pyc.runtime.text.chat.filters import check_format_spec, join_text
from pyc.runtime.text.chat.limits import Meter


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
        if any(spec and "{" in spec for _, _, spec, _ in self.parse(template)):  # fields inside of fields
            text = self.vformat(template, args, kwargs)
            return derive(text, template, *args, *kwargs.values(), *self._letters)
        pieces: list[str] = []
        automatic = position = 0
        for literal, field, spec, conversion in self.parse(template):
            end = position + len(literal)
            plain = template[position:end]
            pieces.append(plain if plain == literal else AuthoredText(literal, UNKNOWN))
            if field is None:
                position = end + (template[end - 1 : end + 1] in ("{{", "}}"))  # one brace is written as two
                continue
            position = template.find("}", end) + 1 or len(template)
            if not field or field[0] in ".[":
                field, automatic = f"{automatic}{field}", automatic + 1
            value = self.convert_field(self.get_field(field, args, kwargs)[0], conversion)
            pieces.append(self.format_field(value, spec or ""))
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
