"""Checks of what callers of the Python API pass: each refusal names the argument, what it got and what it expected.

numpy's numbers are numbers: `np.int64(3)` is an integer, `np.float32(0.5)` a number.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, SupportsFloat, SupportsIndex, TypeVar, cast

from pyc.runtime.errors import RunError

_Item = TypeVar("_Item")


def kind_of(value: object) -> str:
    """What to call a value in a message."""
    return "None" if value is None else type(value).__name__


def shown(value: object) -> str:
    """A value in a message, cut short, with its kind where it is not obvious."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 64:
        return "an integer of more than 64 bits"  # of which Python may not even make text
    if value is None or isinstance(value, (bool, int, float)):
        return f"{value!r:.60}"
    if isinstance(value, str):
        return f"{value[:60]!r}"
    return kind_of(value)


def integer(value: object, name: str, expected: str, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int. Raises RunError unless it is an integer, not a bool, from `low` to `high`."""
    if not _is_number(value) or not isinstance(value, numbers.Integral):
        raise RunError(f"{name}: got {shown(value)}, expected {expected}")
    number = operator.index(cast("SupportsIndex", value))
    if (low is not None and number < low) or (high is not None and number > high):
        raise RunError(f"{name}: got {shown(number)}, expected {expected}")
    return number


def number(value: object, name: str, expected: str) -> int | float:
    """`value` as an int or a float. Raises RunError unless it is a number, and not a bool."""
    if not _is_number(value):
        raise RunError(f"{name}: got {shown(value)}, expected {expected}")
    if isinstance(value, numbers.Integral):
        return operator.index(cast("SupportsIndex", value))
    try:
        return float(cast("SupportsFloat", value))
    except OverflowError:  # a fraction
        raise RunError(f"{name}: got a number that no float holds, expected {expected}") from None


def integers(values: Iterable[object], name: str, low: int = 0, high: int | None = None) -> list[int]:
    """`values` as ints. Raises RunError for the first that is not one, with its place."""
    expected = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    return [
        value if type(value) is int and value >= low and (high is None or value <= high)
        else integer(value, f"{name}[{index}]", expected, low, high)
        for index, value in enumerate(values)
    ]


def is_tensor(value: object) -> bool:
    """Whether `value` is an array of another library than numpy. To iterate over one of torch makes all its items."""
    return hasattr(value, "__array__") and not any(kind.__module__ == "numpy" for kind in type(value).__mro__)


def first_of(items: Iterable[_Item], most: int) -> list[_Item]:
    """`items`, or the first `most` + 1 of them, which tell that there are more. A tensor gives Python's numbers.

    Raises RunError for a tensor that has no values in memory.
    """
    if is_tensor(items):
        try:
            return list(cast("Any", items)[: most + 1].tolist())
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:  # sparse, or without values
            raise RunError(f"token ids: a {kind_of(items)} gives no list: {str(error)[:100]}; pass a list") from error
    return list(islice(items, most + 1))


def flag(value: object, name: str) -> bool:
    """`value` as a bool. Raises RunError unless it is one, numpy's included."""
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise RunError(f"{name}: got {shown(value)}, expected True or False")


def checked_text(text: object, name: str) -> str:
    """`text`. Raises RunError, beginning with `name`, for what is not Unicode text: lone surrogates."""
    if not isinstance(text, str):
        raise RunError(f"{name}: got {shown(text)}, expected text (str)")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RunError(f"{name}: character {error.start} is a lone surrogate, not Unicode text") from None
    return text


def texts(values: object, name: str, most: int | None = None) -> list[str]:
    """`values` as a list of texts. Raises RunError for one text, for what is no sequence or no text, and for more than
    `most`, of which no more are read."""
    if isinstance(values, str):
        raise RunError(f"{name}: got one string, expected a sequence of texts; write [text]")
    others = (bytes, bytearray, Mapping)
    if isinstance(values, others) or not hasattr(values, "__iter__") or _is_scalar(values) or _is_table(values):
        raise RunError(f"{name}: got {shown(values)}, expected a sequence of texts")
    read = islice(cast("Iterable[object]", values), None if most is None else most + 1)
    found = [checked_text(text, f"{name}[{index}]") for index, text in enumerate(read)]
    if most is not None and len(found) > most:
        raise RunError(f"{name}: got more than {most} strings, expected at most {most}")
    return found


def is_sequence(value: object) -> bool:
    """Whether `value` is a list, a tuple, an array or their like, and not text or bytes."""
    if isinstance(value, (list, tuple)):  # each token's, and soon told
        return True
    if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or _is_scalar(value) or _is_table(value):
        return False
    return isinstance(value, Sequence) or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))


def _is_number(value: object) -> bool:
    """Whether `value` is a real number, and neither a bool nor a span of time, which numpy takes for an integer."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    return hasattr(value, "__index__") or not isinstance(value, numbers.Integral)


def _is_scalar(value: object) -> bool:
    """Whether `value` is an array without a dimension, which has the methods of a sequence all the same."""
    return getattr(value, "shape", None) == ()


def _is_table(value: object) -> bool:
    """Whether `value` has rows and columns, as those of pandas and polars have, which iterate over names or columns."""
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) == 2 and hasattr(value, "columns")


def providers(values: object) -> tuple[tuple[str, dict[str, str]], ...]:
    """Execution providers, each a name or a name and its options, as pairs. Raises RunError for anything else."""
    expected = "names of execution providers, or pairs of a name and its options"
    if isinstance(values, str) or not is_sequence(values):
        raise RunError(f"providers: got {shown(values)}, expected a sequence of {expected}")
    found: list[tuple[str, dict[str, str]]] = []
    for index, value in enumerate(cast("Sequence[object]", values)):
        name, options = value if isinstance(value, tuple) and len(value) == 2 else (value, {})
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise RunError(f"providers[{index}]: got {shown(value)}, expected {expected}")
        found.append((name, {str(key): str(setting) for key, setting in options.items()}))
    return tuple(found)


def checked_context(context: int | None, most: int) -> int:
    """Return the tokens that a sequence may have, `most` for None. Raises RunError."""
    if context is None:
        return most
    context = integer(context, "context", f"an integer from 1 to {most}, or None")
    if not 1 <= context <= most:
        raise RunError(
            f"context: got {shown(context)}, expected 1 to {most}, which the artifact was compiled for; build with a "
            "larger shapes.context"
        )
    return context
