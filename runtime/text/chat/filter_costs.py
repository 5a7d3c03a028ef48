"""What the filters of chat templates cost, checked before they run. Checks raise RunError."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from jinja2.runtime import Undefined

from pyc.runtime.errors import RunError
from pyc.runtime.text.chat.limits import Meter
from pyc.runtime.text.chat.operation_costs import TEXT, check_dunder, check_percent, check_replace, check_width

Check = Callable[[Meter, tuple[object, ...], Mapping[str, object]], None]

MAX_ATTRIBUTE = 256
_ROW = 8
_WORD = 8
_LINE = 24


def check_attribute(attribute: object) -> None:
    """What filters take for `attribute`, which jinja2 parts at points and commas."""
    if isinstance(attribute, str) and len(attribute) > MAX_ATTRIBUTE:
        raise RunError(f"chat template: an attribute of more than {MAX_ATTRIBUTE} characters")


def check_center(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    for width in (*args[1:2], *kwargs.values()):
        check_width(meter, width)


def check_indent(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    width = args[1] if len(args) > 1 else kwargs.get("width", 4)
    columns = width if isinstance(width, int) else len(width) if isinstance(width, str) else 0
    check_width(meter, columns)
    text = args[0]
    if isinstance(text, str):
        lines = str.splitlines(text)
        meter.reserve(len(text) + (len(lines) + 1) * max(columns, 0) + _LINE * sum(map(bool, lines)))
        meter.pass_over(lines)


def check_replacement(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    given = [meter.text(value) for value in (*args, *(kwargs[name] for name in ("old", "new") if name in kwargs))]
    if len(given) >= 3:
        check_replace(meter, given[0], given[1], given[2])


def check_format(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    check_percent(meter, args[0], kwargs or args[1:])


def check_round(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    precision = args[1] if len(args) > 1 else kwargs.get("precision", 0)
    if not isinstance(precision, int) or abs(precision) > 20:
        raise RunError("chat template: round to more than 20 digits")


def check_attr(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """ChatEnvironment.getattr looks at what the object has."""
    for name in (*args[1:], *kwargs.values()):
        check_dunder(name)


def check_each(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that go over all values, or letters."""
    meter.pass_over(args[0])
    check_attribute(args[1] if len(args) > 1 else kwargs.get("attribute"))


def check_compared(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that make a text of each value, to compare it with others, and then leave it."""
    meter.pass_over(args[0])
    meter.compare(meter.size(args[0]).characters)
    check_attribute(args[2] if len(args) > 2 else kwargs.get("attribute"))


def check_unique(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For `unique`, which has a set of the values, or of what they have for an attribute."""
    check_compared(meter, args, kwargs)
    attribute = args[2] if len(args) > 2 else kwargs.get("attribute")
    if attribute is not None:
        meter.hash_all(itertools.repeat(None, sum(1 for _ in cast("Iterable[object]", args[0]))))
    elif not isinstance(args[0], str):
        meter.hash_all(cast("Iterable[object]", args[0]))


def check_words(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that part a text into words."""
    text = meter.text(args[0])
    meter.reserve(_WORD * len(text))
    meter.pass_over(text, 0.25)


def check_rows(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that make rows: how many, or of how many."""
    meter.pass_over(args[0])
    if isinstance(args[0], (str, list, tuple, dict)):
        meter.charge(TEXT * len(args[0]))
    for value in (*args[1:2], *(kwargs[name] for name in ("linecount", "slices") if name in kwargs)):
        if isinstance(value, int):
            meter.charge(_ROW * value if value > 0 else 0)


def check_trim(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    meter.search(meter.text(args[0]), args[1] if len(args) > 1 else kwargs.get("chars"))


def check_url(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """A character is at most four bytes, each `%XX`."""
    if not isinstance(args[0], (str, int, float, dict, list, tuple, Undefined, type(None))):
        raise RunError("chat template: urlencode of something other than a text, a mapping or a list of pairs")
    meter.reserve(12 * meter.size(args[0]).characters)


def check_text(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that call str() on their input."""
    meter.text(args[0])


def no_check(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters whose result is at most a few times their input."""


COMPARING = (check_compared, check_unique)
"""For filters that look at all values before they give one: what is made as they ask is a list first."""
