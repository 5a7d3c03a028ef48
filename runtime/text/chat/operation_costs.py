"""What the methods of texts and the operators of chat templates cost, checked before they run."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pyc.runtime.text.chat.filters import check_replace, check_width
from pyc.runtime.text.chat.limits import Meter

WIDTH_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
SEARCH_METHODS = frozenset({"rfind", "rindex", "rpartition", "rsplit", "strip", "lstrip", "rstrip"})
SPLIT_METHODS = frozenset({"split", "rsplit", "splitlines"})
PARTING_METHODS = SPLIT_METHODS | {"partition", "rpartition"}
"""Whose parts are new texts, together as long as the text."""
_LONG = 4096


def check_method(
    meter: Meter, text: str, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """The cost of `text.name(*args, **kwargs)`. Raises RunError."""
    if name in WIDTH_METHODS:
        check_width(meter, args[0] if args else None)
    elif name == "replace" and len(args) >= 2:
        check_replace(meter, text, args[0], args[1])
    elif name in SEARCH_METHODS:
        meter.search(text, args[0] if args else kwargs.get("sep"))
    if name in SPLIT_METHODS and len(text) > _LONG:
        meter.pass_over(getattr(str, name)(text, *args, **kwargs))


def bounded_pairs(meter: Meter, pairs: object) -> object:
    """What dict() and namespace() take, a mapping or pairs, its keys counted. Raises RunError."""
    if isinstance(pairs, Mapping):
        meter.hash_all(pairs)
        return pairs
    listed = list(meter.each(cast("Iterable[object]", pairs)))
    meter.hash_all(pair[0] if isinstance(pair, (str, list, tuple)) and pair else None for pair in listed)
    return listed


def check_product(meter: Meter, left: object, right: object) -> None:
    """The size of left * right. Raises RunError."""
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(times, int):
            meter.reserve(meter.size(value).characters * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        meter.check_integer_bits(left.bit_length() + right.bit_length())


def check_power(meter: Meter, base: object, exponent: object) -> None:
    """The size of base ** exponent. Raises RunError."""
    if isinstance(base, int) and isinstance(exponent, int):
        meter.check_integer_bits(base.bit_length() * abs(operator.index(exponent)))
