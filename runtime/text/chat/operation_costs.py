"""What methods of texts and operators cost in chat templates, checked before they run. Checks raise RunError."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from jinja2.exceptions import SecurityError

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_markup import Markup
from pyc.runtime.text.authored_text import percent_fields
from pyc.runtime.text.chat.limits import Meter

MAX_WIDTH = 4096
LONGEST_ENTITY = 5
TEXT = 64
"""That an object of a text takes as much as."""
_NUMBER = 640
"""Characters of the longest."""
_LONG_NUMBER = re.compile(r"\d{4,}")
_DIGITS = re.compile(r"\d+")

WIDTH_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
SEARCH_METHODS = frozenset({"rfind", "rindex", "rpartition", "rsplit", "strip", "lstrip", "rstrip"})
SPLIT_METHODS = frozenset({"split", "rsplit", "splitlines"})
PARTING_METHODS = SPLIT_METHODS | {"partition", "rpartition"}
"""Whose parts are new texts, together as long as the text."""
_LONG = 4096
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PIECE_BYTES = 128
"""What a piece of a text takes and its authors, while the pieces are put together."""
_ENTRY = 8
"""What a list takes for a value."""


def check_dunder(name: object) -> None:
    """Refuse Python's own names at once, whether the object has them or not."""
    if isinstance(name, str) and name.startswith("__"):
        raise SecurityError(f"access to {name!r} is not allowed")


def check_method(
    meter: Meter, text: str, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """The cost of `text.name(*args, **kwargs)`."""
    if name in WIDTH_METHODS:
        check_width(meter, args[0] if args else None)
    elif name == "replace" and len(args) >= 2:
        check_replace(meter, text, args[0], args[1])
    elif name in SEARCH_METHODS:
        meter.search(text, args[0] if args else kwargs.get("sep"))
    if name in SPLIT_METHODS and len(text) > _LONG:
        _check_split(meter, text, name, args, kwargs)


def _check_split(
    meter: Meter, text: str, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    separator = args[0] if args else kwargs.get("sep")
    if name == "splitlines":
        parts = 1 + sum(map(text.count, _LINE_ENDS))
    elif isinstance(separator, str) and separator:
        parts = text.count(separator)
    else:
        meter.budget.require(_PIECE_BYTES // 2 * (len(text) // 2))
        parts = len(getattr(str, name)(text, *args, **kwargs))
    meter.reserve(_ENTRY * parts)
    meter.budget.require(_PIECE_BYTES // 2 * parts)
    meter.expect(2 * parts if isinstance(text, Markup) else parts)  # whose parts are marked, too


def bounded_pairs(meter: Meter, pairs: object) -> object:
    """What dict() and namespace() take, a mapping or pairs, its keys counted."""
    if isinstance(pairs, Mapping):
        meter.check_keys(pairs)
        meter.charge(TEXT * len(pairs))
        return pairs
    listed = list(meter.each(cast("Iterable[object]", pairs)))
    meter.charge(TEXT * len(listed))
    meter.check_keys(pair[0] if isinstance(pair, (str, list, tuple)) and pair else None for pair in listed)
    return listed


def check_product(meter: Meter, left: object, right: object) -> None:
    """The size of left * right."""
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(times, int):
            meter.reserve(meter.size(value).characters * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        meter.check_integer_bits(left.bit_length() + right.bit_length())


def check_power(meter: Meter, base: object, exponent: object) -> None:
    """The size of base ** exponent."""
    if isinstance(base, int) and isinstance(exponent, int):
        meter.check_integer_bits(base.bit_length() * abs(operator.index(exponent)))


def check_width(meter: Meter, width: object) -> None:
    """A field width: at most 4096."""
    if isinstance(width, int) and abs(width) > MAX_WIDTH:
        raise RunError(f"chat template: a field width above {MAX_WIDTH}")


def check_replace(meter: Meter, text: object, old: object, new: object) -> None:
    """The size of text.replace(old, new)."""
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        times = text.count(old) if old else len(text) + 1
        meter.reserve(len(text) + times * max(0, len(new) - len(old)))
        meter.budget.require(_PIECE_BYTES * times)
        meter.expect(times)


def check_percent(meter: Meter, template: object, values: object) -> None:
    """The field widths of a %-format, and the size of what it builds."""
    if not isinstance(template, str):
        return
    given = list(values) if isinstance(values, (list, tuple)) else [values]
    if isinstance(values, Mapping):
        given = []
    meter.reserve(TEXT * template.count("%"))
    widths = 0
    for field in percent_fields(template):
        meter.step()
        if "*" in field.size or _LONG_NUMBER.search(field.size):
            raise RunError("chat template: a format with a field width of four digits or '*'")
        widths += sum(map(int, _DIGITS.findall(field.size)))
        if isinstance(values, Mapping):  # a format may name one value many times
            given.append(values if field.name is None else values.get(field.name))
    shown = sum(_NUMBER if isinstance(value, (int, float)) else meter.size(value).characters for value in given)
    meter.reserve(len(template) + widths + shown * (LONGEST_ENTITY if isinstance(template, Markup) else 1))


def check_format_spec(spec: str) -> None:
    """The field widths of a str.format field."""
    if _LONG_NUMBER.search(spec):
        raise RunError("chat template: a format with a field width of four digits")
