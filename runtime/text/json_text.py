"""JSON of and for others: written so that every parser reads it, and read as RFC 8259 has it.

Python's json goes beyond the RFC both ways: NaN and infinities, and lone surrogates, which names of files that are not
UTF-8 become. Here a lone surrogate is written as lines of output show it (six letters, "\\udce8"), and a number that
JSON lacks as null; what is read has neither such numbers nor deep nesting.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import NoReturn

MAX_DEPTH = 32

_LONE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x7f-\x9f\u2028\u2029]")
_NOT_ASCII = re.compile("[^\x00-\x7e]")


def json_text(
    document: object,
    *,
    indent: int | None = None,
    ensure_ascii: bool = True,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the document as JSON, without a newline at its end; options as of `json.dumps`.

    Control characters (C0, DEL, C1, separators of lines) are escaped either way, so that a terminal may show it. Raises
    TypeError for what JSON has no form for, and RecursionError for what is too deep.
    """
    try:
        text = json.dumps(
            document,
            ensure_ascii=False,
            allow_nan=False,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
    except ValueError:  # a number that JSON lacks: seldom, so that vectors are not copied for it
        text = json.dumps(
            _finite(document), ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
        )
    if text.isascii() and "\x7f" not in text:
        return text
    text = _LONE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)
    return (_NOT_ASCII if ensure_ascii else _CONTROL).sub(_escaped, text)


def parse_json(text: str, objects: Callable[[list[tuple[str, object]]], object] = dict) -> object:
    """Return what a JSON text says; `objects` makes an object of its pairs.

    Raises ValueError for what is no JSON, for NaN and numbers beyond f64, and for more than MAX_DEPTH levels;
    RecursionError for many more.
    """
    value: object = json.loads(
        text, object_pairs_hook=objects, parse_constant=_refuse_constant, parse_float=_parse_float
    )
    if _is_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def _finite(value: object) -> object:
    """The value with None in the place of each number that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is beyond float64")
    return value


def _is_deep(value: object) -> bool:
    """Whether a value is nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = (item for item in level if isinstance(item, dict | list))
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
    return bool(level)
