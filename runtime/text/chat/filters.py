"""The filters of chat templates, each with its cost checked before it builds anything.

What is not in FILTERS does not exist: filters whose cost cannot be told beforehand, that are random, or that
chat templates have no use for. Semantics are jinja2's without automatic escaping, except `tojson`, which is that of
transformers (no HTML escapes). So `safe` and `escape` return Markup (authored_markup.py), as jinja2's do.
"""

import html
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from jinja2 import filters as builtin
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, Undefined

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_markup import Markup, mark
from pyc.runtime.text.authored_text import TEMPLATE, UNKNOWN, AuthoredText, derive, is_templates, percent_fields
from pyc.runtime.text.chat.limits import Meter

Check = Callable[[Meter, tuple[object, ...], Mapping[str, object]], None]
Function = Callable[..., object]

MAX_WIDTH = 4096
_NOTHING = AuthoredText("", TEMPLATE)
_LINE_END = AuthoredText("\n", TEMPLATE)
MAX_INDENT = 16
MAX_ATTRIBUTE = 256
LONGEST_ENTITY = 5
_NUMBER = 640  # characters of the longest
_ROW = 8
_WORD = 8
_LINE = 24
_TEXT = 64
"""That an object of a text takes as much as."""
_LONG_NUMBER = re.compile(r"\d{4,}")
_DIGITS = re.compile(r"\d+")


def check_dunder(name: object) -> None:
    """Refuse Python's own names at once, whether the object has them or not."""
    if isinstance(name, str) and name.startswith("__"):
        raise SecurityError(f"access to {name!r} is not allowed")


def check_width(meter: Meter, width: object) -> None:
    """A field width: at most 4096."""
    if isinstance(width, int) and abs(width) > MAX_WIDTH:
        raise RunError(f"chat template: a field width above {MAX_WIDTH}")


def check_attribute(attribute: object) -> None:
    """What filters take for `attribute`, which jinja2 parts at points and commas."""
    if isinstance(attribute, str) and len(attribute) > MAX_ATTRIBUTE:
        raise RunError(f"chat template: an attribute of more than {MAX_ATTRIBUTE} characters")


def check_replace(meter: Meter, text: object, old: object, new: object) -> None:
    """The size of text.replace(old, new)."""
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        times = text.count(old) if old else len(text) + 1
        meter.reserve(len(text) + times * max(0, len(new) - len(old)))


def check_percent(meter: Meter, template: object, values: object) -> None:
    """The field widths of a %-format, and the size of what it builds."""
    if not isinstance(template, str):
        return
    given = list(values) if isinstance(values, (list, tuple)) else [values]
    if isinstance(values, Mapping):
        given = []
    meter.charge(_TEXT * template.count("%"))
    widths = 0
    for field in percent_fields(template):
        meter.step()
        if "*" in field.size or _LONG_NUMBER.search(field.size):
            raise RunError("chat template: a format with a field width of four digits or '*'")
        widths += sum(map(int, _DIGITS.findall(field.size)))
        if isinstance(values, Mapping):  # a format may name one value many times
            given.append(values if field.name is None else values.get(field.name))
    shown = sum(_NUMBER if isinstance(value, (int, float)) else meter.size(value).characters for value in given)
    meter.charge(len(template) + widths + shown * (LONGEST_ENTITY if isinstance(template, Markup) else 1))


def check_format_spec(spec: str) -> None:
    """The field widths of a str.format field."""
    if _LONG_NUMBER.search(spec):
        raise RunError("chat template: a format with a field width of four digits")


def join_text(meter: Meter, separator: str, values: Iterable[object], *, convert: bool) -> str:
    """separator.join(values), checked first. `convert`: values that are not text become text. Markup escapes them."""
    parts: list[object] = []
    is_markup = isinstance(separator, Markup)
    for value in meter.each(values):
        if is_markup:
            parts.append(meter.escaped(value))
        elif isinstance(value, str) or not convert:
            parts.append(value)
        else:
            parts.append(derive(meter.text(value), value))
    length = sum(len(part) for part in parts if isinstance(part, str))
    meter.reserve(length + len(separator) * len(parts))
    if not isinstance(separator, AuthoredText):
        separator = AuthoredText(separator, UNKNOWN)
    joined = separator.join(cast("list[str]", parts))  # a part that is not text raises TypeError, as in Python
    meter.accept(joined)
    return joined


def _join(context: Context, value: object, d: object = _NOTHING, attribute: str | int | None = None) -> str:
    meter = meter_of(context)
    if isinstance(value, Undefined):
        return ""
    check_attribute(attribute)
    values = cast("Iterable[object]", value)
    if attribute is not None:
        values = map(builtin.make_attrgetter(context.environment, attribute), values)
    return join_text(meter, str(meter.text(d)), values, convert=True)


def _tojson(
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    meter = meter_of(context)
    width = 0 if indent is None else indent if isinstance(indent, int) else len(indent)
    if width > MAX_INDENT or any(len(separator) > MAX_INDENT for separator in separators or ()):
        raise RunError(f"chat template: tojson with an indent or separator of more than {MAX_INDENT} characters")
    size = meter.size(value)
    meter.charge(size.characters + size.objects * (width * size.depth + 2 * MAX_INDENT * (separators is not None)))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    meter.charge(len(text))
    spelt = [each for each in (indent, *(separators or ())) if isinstance(each, str) and not is_templates(each)]
    return derive(text, value, *spelt)


def _string(context: Context, value: object) -> str:
    return meter_of(context).text(value)


def _escape(context: Context, value: object) -> str:
    return meter_of(context).escaped(value)


def _force_escape(context: Context, value: object) -> str:
    meter = meter_of(context)
    text = meter.text(value)
    return meter.escaped(str(text) if isinstance(value, str) else derive(text, value))


def _safe(context: Context, value: object) -> str:
    text = meter_of(context).text(value)
    return mark(text if isinstance(value, str) else derive(text, value))


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Each line behind the first, and that `first` and those without letters if `blank`, behind `width` spaces."""
    if isinstance(s, Markup):
        return mark(_indent(str(s), str(width) if isinstance(width, str) else width, first, blank))
    if isinstance(width, Markup):
        raise RunError("chat template: indent by a text of `safe` or `escape`; leave that filter out")
    indention = width if isinstance(width, str) else AuthoredText(" " * width, TEMPLATE)
    first_line, *others = (s + _LINE_END).splitlines()
    if first:
        first_line = indention + first_line
    return _LINE_END.join([first_line, *(indention + line if line or blank else line for line in others)])


def _sort(
    context: Context,
    value: Iterable[object],
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: str | int | None = None,
) -> object:
    """jinja2's, which makes a text of each value, or of what it has for each attribute, by which it sorts."""
    meter = meter_of(context)
    values = list(meter.each(value))
    meter.accept(values)
    meter.pass_over(values)
    check_attribute(attribute)
    if attribute is None:
        meter.charge(_TEXT * len(values) + meter.size(values).characters)
    else:
        keys_of = builtin.make_multi_attrgetter(context.environment, attribute)
        for key in (key for each in values for key in keys_of(each)):
            meter.charge(_TEXT + (len(key) if isinstance(key, str) else 0))
    return builtin.do_sort(context.environment, values, reverse, case_sensitive, attribute)


def _striptags(value: object) -> str:
    """jinja2's, without the tags' times the text's length that some versions of its library take."""
    text = str.__str__(value) if isinstance(value, str) else str(value)
    pieces: list[str] = []
    position = 0
    while (start := text.find("<", position)) >= 0:
        closing = "-->" if text.startswith("<!--", start) else ">"
        end = text.find(closing, start + (4 if closing == "-->" else 0))
        if end < 0:
            break
        pieces.append(text[position:start])
        position = end + len(closing)
    return html.unescape(" ".join("".join([*pieces, text[position:]]).split()))


def _sum(context: Context, iterable: Iterable[object], attribute: str | int | None = None, start: object = 0) -> object:
    check_attribute(attribute)
    if attribute is not None:
        iterable = map(builtin.make_attrgetter(context.environment, attribute), iterable)
    meter = meter_of(context)
    total = start
    for value in meter.each(iterable):
        if isinstance(total, list) and isinstance(value, list):
            meter.charge(8 * (len(total) + len(value)))
            total = meter.accept(total + value)
        elif isinstance(total, (int, float)) and isinstance(value, (int, float)):
            total = total + value
        else:
            raise RunError("chat template: sum of something other than numbers, or lists with `start=[]`")
    return total


def _check_center(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    for width in (*args[1:2], *kwargs.values()):
        check_width(meter, width)


def _check_indent(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    width = args[1] if len(args) > 1 else kwargs.get("width", 4)
    columns = width if isinstance(width, int) else len(width) if isinstance(width, str) else 0
    check_width(meter, columns)
    text = args[0]
    if isinstance(text, str):
        lines = str.splitlines(text)
        meter.charge(len(text) + (len(lines) + 1) * max(columns, 0) + _LINE * sum(map(bool, lines)))
        meter.pass_over(lines)


def _check_replace(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    given = [meter.text(value) for value in (*args, *(kwargs[name] for name in ("old", "new") if name in kwargs))]
    if len(given) >= 3:
        check_replace(meter, given[0], given[1], given[2])


def _check_format(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    check_percent(meter, args[0], kwargs or args[1:])


def _check_round(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    precision = args[1] if len(args) > 1 else kwargs.get("precision", 0)
    if not isinstance(precision, int) or abs(precision) > 20:
        raise RunError("chat template: round to more than 20 digits")


def _check_attr(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """ChatEnvironment.getattr looks at what the object has."""
    for name in (*args[1:], *kwargs.values()):
        check_dunder(name)


def _check_each(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that go over all values, or letters."""
    meter.pass_over(args[0])
    check_attribute(args[1] if len(args) > 1 else kwargs.get("attribute"))


def _check_compared(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that make a text of each value, to compare it with others, and then leave it."""
    meter.pass_over(args[0])
    meter.compare(meter.size(args[0]).characters)
    check_attribute(args[2] if len(args) > 2 else kwargs.get("attribute"))


def _check_unique(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For `unique`, which has a set of the values, or of what they have for an attribute."""
    _check_compared(meter, args, kwargs)
    attribute = args[2] if len(args) > 2 else kwargs.get("attribute")
    if attribute is not None:
        meter.hash_all(itertools.repeat(None, sum(1 for _ in cast("Iterable[object]", args[0]))))
    elif not isinstance(args[0], str):
        meter.hash_all(cast("Iterable[object]", args[0]))


def _check_words(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that part a text into words."""
    text = meter.text(args[0])
    meter.charge(_WORD * len(text))
    meter.pass_over(text, 0.25)


def _check_rows(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that make rows: how many, or of how many."""
    meter.pass_over(args[0])
    if isinstance(args[0], (str, list, tuple, dict)):
        meter.charge(_TEXT * len(args[0]))
    for value in (*args[1:2], *(kwargs[name] for name in ("linecount", "slices") if name in kwargs)):
        if isinstance(value, int):
            meter.charge(_ROW * value if value > 0 else 0)


def _check_trim(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    meter.search(meter.text(args[0]), args[1] if len(args) > 1 else kwargs.get("chars"))


def _check_url(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """A character is at most four bytes, each `%XX`."""
    if not isinstance(args[0], (str, int, float, dict, list, tuple, Undefined, type(None))):
        raise RunError("chat template: urlencode of something other than a text, a mapping or a list of pairs")
    meter.charge(12 * meter.size(args[0]).characters)


def _check_text(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters that call str() on their input."""
    meter.text(args[0])


def _no_check(meter: Meter, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """For filters whose result is at most a few times their input."""


COMPARING = (_check_compared, _check_unique)
"""For filters that look at all values before they give one: what is made as they ask is a list first."""

# name: jinja2's implementation, what to check before it runs
BUILTIN_FILTERS: dict[str, tuple[Function, Check]] = {
    "abs": (abs, _no_check),
    "attr": (builtin.do_attr, _check_attr),
    "batch": (builtin.do_batch, _check_rows),
    "capitalize": (builtin.do_capitalize, _check_text),
    "center": (builtin.do_center, _check_center),
    "count": (len, _no_check),
    "d": (builtin.do_default, _no_check),
    "default": (builtin.do_default, _no_check),
    "dictsort": (builtin.do_dictsort, _check_compared),
    "first": (builtin.do_first, _no_check),
    "float": (builtin.do_float, _no_check),
    "format": (builtin.do_format, _check_format),
    "indent": (_indent, _check_indent),
    "int": (builtin.do_int, _no_check),
    "items": (builtin.do_items, _no_check),
    "last": (builtin.do_last, _no_check),
    "length": (len, _no_check),
    "list": (builtin.sync_do_list, _check_each),
    "lower": (builtin.do_lower, _check_text),
    "map": (builtin.sync_do_map, _check_each),
    "max": (builtin.do_max, _check_compared),
    "min": (builtin.do_min, _check_compared),
    "reject": (builtin.sync_do_reject, _check_each),
    "rejectattr": (builtin.sync_do_rejectattr, _check_each),
    "replace": (builtin.do_replace, _check_replace),
    "reverse": (builtin.do_reverse, _no_check),
    "round": (builtin.do_round, _check_round),
    "select": (builtin.sync_do_select, _check_each),
    "selectattr": (builtin.sync_do_selectattr, _check_each),
    "slice": (builtin.sync_do_slice, _check_rows),
    "striptags": (_striptags, _check_words),
    "title": (builtin.do_title, _check_words),
    "trim": (builtin.do_trim, _check_trim),
    "truncate": (builtin.do_truncate, _check_text),
    "unique": (builtin.do_unique, _check_unique),
    "upper": (builtin.do_upper, _check_text),
    "urlencode": (builtin.do_urlencode, _check_url),
    "wordcount": (builtin.do_wordcount, _check_words),
}

# name: an implementation of ours, which does its own accounting
OWN_FILTERS: dict[str, Function] = {
    "e": _escape,
    "escape": _escape,
    "forceescape": _force_escape,
    "join": _join,
    "safe": _safe,
    "sort": _sort,
    "string": _string,
    "sum": _sum,
    "tojson": _tojson,
}


def meter_of(context: Context) -> Meter:
    """The account of the rendering that `context` belongs to."""
    meter = context.environment.meter  # type: ignore[attr-defined]  # only a ChatEnvironment makes such contexts
    assert isinstance(meter, Meter)
    return meter
