"""Reads a JSON file of a checkpoint once, strictly, into a typed value.

RFC 8259 leaves duplicate names to the reader, and Python's json also takes NaN and Infinity; here both are
errors, and so are numbers beyond float64, nesting beyond the interpreter's depth and text that is not UTF-8.
"""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from pyc.runtime.errors import IngestError, PycError

T = TypeVar("T")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} occurs twice in one object")
            seen.add(name)
    return table


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text} is beyond float64")
    return value


def decode(data: bytes, kind: type[T], where: str, error: type[PycError] = IngestError) -> T:
    """Return `data` as a value of `kind` (a msgspec Struct or a container of such).

    Raises `error` beginning with `where` when the text is not strict JSON or has another type than `kind`.
    """
    try:
        value: object = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise error(f"{where}: {problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}: not valid JSON: {problem}") from problem
