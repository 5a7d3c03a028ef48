"""Optimization profiles out of a recipe's shapes: the sizes that engines are built for, and tuned at.

An executor runs one row of several sequences together ("decode"), and several rows of one sequence ("prompt"). The
cache has room for the smallest of `capacities` that holds the longest sequence, so that short ones do not read room
for long ones.
"""

from __future__ import annotations

from pyc.backends.protocol import Buckets
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.executors.tensorrt.program import Extent, Profile
from pyc.runtime.host.rounding import round_up

SMALLEST_CAPACITY = 256
"""Positions; below that an empty place costs nothing that one would notice."""


def capacities(info: ModelInfo) -> tuple[int, ...]:
    """Return the positions a sequence that the cache of a decoder may have room for, each double the one before."""
    cache = info.kv_cache
    assert cache is not None
    most = round_up(info.context, cache.block_tokens)
    found = [min(SMALLEST_CAPACITY, most)]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return tuple(found)


def profiles_of(function: str, info: ModelInfo, buckets: Buckets) -> tuple[Profile, ...]:
    """Return the profiles of the graph of "forward", "logits" or "embed"."""
    match function:
        case "forward":
            return _forward(info, buckets)
        case "logits":
            width = info.hidden_size
            rows = buckets.logits
            return (Profile("logits", (Extent("hidden", (1, width), (rows[0], width), (rows[-1], width)),)),)
        case _:
            longest = min(buckets.tokens[-1], info.context)
            most = min(info.max_sequences, buckets.tokens[-1])
            shapes = (1, 1), (most, max(longest // 4, 1)), (most, longest)
            return (Profile("embed", tuple(Extent(name, *shapes) for name in ("input_ids", "attention_mask"))),)


def _forward(info: ModelInfo, buckets: Buckets) -> tuple[Profile, ...]:
    most_rows = buckets.tokens[-1]
    together = min(info.max_sequences, most_rows)
    decode = _profile(info, "decode", ((1, 1), (together, 1), (together, 1)))
    longest = min(most_rows, info.context)
    if longest == 1:
        return (decode,)
    return decode, _profile(info, "prompt", ((1, 2), (1, longest), (1, longest)))


def _profile(info: ModelInfo, name: str, rows: tuple[tuple[int, int], ...]) -> Profile:
    """Return a profile whose rows are [batch, tokens] at least, likely and at most, over every capacity."""
    cache = info.kv_cache
    assert cache is not None
    sizes = capacities(info)
    rooms = sizes[0], sizes[len(sizes) // 2], sizes[-1]
    past = [(batch, cache.heads, room, cache.head_dim) for (batch, _), room in zip(rows, rooms, strict=True)]
    extents = [Extent(input_name, *rows) for input_name in ("input_ids", "position_ids")]
    for layer in range(cache.layers):
        extents += (Extent(f"past_key_values.{layer}.{kind}", *past) for kind in ("key", "value"))
    return Profile(name, tuple(extents))
