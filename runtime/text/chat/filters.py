"""The filters of chat templates, each with its cost checked before it builds anything.

What is not in FILTERS does not exist: filters whose cost cannot be told beforehand, that are random, or that
chat templates have no use for. Semantics are jinja2's without automatic escaping, except `tojson`, which is that of
transformers (no HTML escapes). So `safe` and `escape` return Markup (authored_markup.py), as jinja2's do.
"""

import html
import json
from collections.abc import Callable, Iterable
from typing import cast

from jinja2 import filters as builtin
from jinja2.runtime import Context, Undefined

from pyc.runtime.errors import RunError
from pyc.runtime.text.authored_markup import Markup, mark
from pyc.runtime.text.authored_text import TEMPLATE, UNKNOWN, AuthoredText, derive, is_templates
from pyc.runtime.text.chat import filter_costs as costs
from pyc.runtime.text.chat.limits import Meter
from pyc.runtime.text.chat.operation_costs import TEXT

Function = Callable[..., object]

_NOTHING = AuthoredText("", TEMPLATE)
_LINE_END = AuthoredText("\n", TEMPLATE)
MAX_INDENT = 16
_OBJECT_COST = 2
"""What `tojson` takes for a value, beside what other filters take: with an indent it is Python that writes it."""


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
    return separator.join(cast("list[str]", parts))  # a part that is not text raises TypeError, as in Python


def _join(context: Context, value: object, d: object = _NOTHING, attribute: str | int | None = None) -> str:
    meter = meter_of(context)
    if isinstance(value, Undefined):
        return ""
    costs.check_attribute(attribute)
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
    meter.expect(_OBJECT_COST * size.objects)
    meter.reserve(size.characters + size.objects * (width * size.depth + 2 * MAX_INDENT * (separators is not None)))
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    meter.reserve(len(text))
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
    costs.check_attribute(attribute)
    if attribute is None:
        characters = meter.size(values).characters
        meter.charge(TEXT * len(values) + characters)
    else:
        keys_of = builtin.make_multi_attrgetter(context.environment, attribute)
        characters = 0
        for key in (key for each in meter.each(values) for key in keys_of(each)):
            size = meter.size(key).characters
            meter.charge(TEXT + (size if isinstance(key, str) else 0))
            characters += size
    meter.compare(characters * len(values).bit_length())
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
    costs.check_attribute(attribute)
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


# name: jinja2's implementation, what to check before it runs
BUILTIN_FILTERS: dict[str, tuple[Function, costs.Check]] = {
    "abs": (abs, costs.no_check),
    "attr": (builtin.do_attr, costs.check_attr),
    "batch": (builtin.do_batch, costs.check_rows),
    "capitalize": (builtin.do_capitalize, costs.check_text),
    "center": (builtin.do_center, costs.check_center),
    "count": (len, costs.no_check),
    "d": (builtin.do_default, costs.no_check),
    "default": (builtin.do_default, costs.no_check),
    "dictsort": (builtin.do_dictsort, costs.check_compared),
    "first": (builtin.do_first, costs.no_check),
    "float": (builtin.do_float, costs.no_check),
    "format": (builtin.do_format, costs.check_format),
    "indent": (_indent, costs.check_indent),
    "int": (builtin.do_int, costs.no_check),
    "items": (builtin.do_items, costs.no_check),
    "last": (builtin.do_last, costs.no_check),
    "length": (len, costs.no_check),
    "list": (builtin.sync_do_list, costs.check_each),
    "lower": (builtin.do_lower, costs.check_text),
    "map": (builtin.sync_do_map, costs.check_each),
    "max": (builtin.do_max, costs.check_compared),
    "min": (builtin.do_min, costs.check_compared),
    "reject": (builtin.sync_do_reject, costs.check_each),
    "rejectattr": (builtin.sync_do_rejectattr, costs.check_each),
    "replace": (builtin.do_replace, costs.check_replacement),
    "reverse": (builtin.do_reverse, costs.no_check),
    "round": (builtin.do_round, costs.check_round),
    "select": (builtin.sync_do_select, costs.check_each),
    "selectattr": (builtin.sync_do_selectattr, costs.check_each),
    "slice": (builtin.sync_do_slice, costs.check_rows),
    "striptags": (_striptags, costs.check_words),
    "title": (builtin.do_title, costs.check_words),
    "trim": (builtin.do_trim, costs.check_trim),
    "truncate": (builtin.do_truncate, costs.check_text),
    "unique": (builtin.do_unique, costs.check_unique),
    "upper": (builtin.do_upper, costs.check_text),
    "urlencode": (builtin.do_urlencode, costs.check_url),
    "wordcount": (builtin.do_wordcount, costs.check_words),
}

# name: an implementation of ours, which counts what it does itself
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
    """What counts the rendering that `context` belongs to."""
    meter = context.environment.meter  # type: ignore[attr-defined]  # only a ChatEnvironment makes such contexts
    assert isinstance(meter, Meter)
    return meter
