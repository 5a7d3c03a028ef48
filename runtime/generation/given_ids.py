"""Token ids as a caller gives them: checked, and read no further than there is room for.

`range(10**9)` is a sequence of integers: a list of it takes gigabytes, and its length tells that it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.arguments import first_of, integers, is_sequence, shown
from pyc.runtime.errors import RunError

TokenIds = Sequence[int] | NDArray[np.int32] | NDArray[np.int64]


def shown_count(items: Sized, most: int) -> str:
    """Return how many `items` there are, of which there are more than `most`, for a message."""
    try:
        return str(max(len(items), most + 1))
    except (OverflowError, TypeError):  # more than a length can be; no length
        return f"more than {most}"


def no_room_for_output(prompt: Sized, context: int) -> RunError:
    """Return the error of a prompt that fills the context, or more."""
    return RunError(
        f"context: the prompt's {shown_count(prompt, context - 1)} tokens leave no room in this model's "
        f"context of {context}; shorten the prompt, or build or load with a larger context"
    )


def checked_array(ids: TokenIds, vocab_size: int, most: int) -> NDArray[np.int64]:
    """Return the first `most` + 1 of `ids` as an array.

    Raises RunError for what is no sequence of integers, for none, and for one outside the vocabulary among those.
    """
    if not hasattr(ids, "__array__") and is_sequence(ids):
        given: object = first_of(ids, most)
    else:
        given = ids
    try:
        array = np.asarray(given)
    except (OverflowError, ValueError, TypeError, RuntimeError) as error:
        raise RunError(f"token ids: expected a sequence of integers, got {type(ids).__name__}") from error
    if array.ndim != 1 or array.size == 0:
        raise RunError(f"token ids: expected at least one token in one dimension, got shape {array.shape}")
    if array.dtype.kind not in "iu":  # of kinds that numpy has no common integer for, or of no integers
        array = np.array(integers(cast("Sequence[int]", given), "token ids"), dtype=object)
    checked = array[: most + 1]
    outside = np.flatnonzero((checked < 0) | (checked >= vocab_size))
    if outside.size:
        raise RunError(
            f"token ids: id {shown(int(checked[outside[0]]))} at position {outside[0]} is outside the vocabulary of "
            f"{vocab_size}; encode the text with this model's tokenizer"
        )
    return checked.astype(np.int64)
