"""Reads a JSON file of a checkpoint once, strictly, into a typed value.

RFC 8259 leaves duplicate names to the reader, and Python's json also takes NaN and Infinity; here both are
errors, and so are numbers beyond float64, nesting deeper than 32 levels, text that is not UTF-8 and half a surrogate
pair. The number of values is bounded before any is made: a byte of text can become 30 of objects.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from pyc.models.messages import shown
from pyc.runtime.errors import IngestError, PycError
from pyc.runtime.text.json_objects import unique_names
from pyc.runtime.text.json_text import parse_json

MAX_PROBLEM = 300
MAX_VALUES = 1 << 17
"""Commas and brackets of a text, those inside strings included."""
MAX_MANY_VALUES = 1 << 19
"""The same for a file with a line for each tensor or token: 65,000 tensors."""

T = TypeVar("T")

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def decode(
    data: bytes | bytearray,
    kind: type[T],
    where: str,
    error: type[PycError] = IngestError,
    max_values: int = MAX_VALUES,
) -> T:
    """Return `data` as a value of `kind` (a msgspec Struct or a container of such).

    Raises `error` beginning with `where` when the text is not strict JSON, has more than about `max_values` values, or
    another type than `kind`.
    """
    values = data.count(b",") + data.count(b"{") + data.count(b"[")
    if values > max_values:
        raise error(f"{where}: has about {values} values, expected at most {max_values}")
    try:
        value = parse_json(data.decode("utf-8"), unique_names)
        if _SURROGATE.search(data):
            msgspec.json.encode(value)  # raises where one half is without the other
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise error(f"{where}: {shown(str(problem), MAX_PROBLEM)}") from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}: not valid JSON: {shown(str(problem), MAX_PROBLEM)}") from problem
