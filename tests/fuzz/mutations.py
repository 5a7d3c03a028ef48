"""Alters JSON where it means something: a name, a value, a place, and the text again in canonical form."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

WHOLE = (0, 1, -1, 2, 3, 4, 8, 16, 255, 4096, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 2**70)
NUMBERS = (*WHOLE, 0.5, -0.0, 1e-300, 1e300)
TEXTS = ("", "a", "0", "none", "../x", "/", "\0", "é", "\ud800", "x" * 300, "F32", "BF16", "all-linear", ".*", "(")
OTHERS = (None, True, False, [], {}, [1], {"a": 1}, [[]])
PREFIXED = "safetensors"
"""Its JSON stands behind eight bytes that say how long it is."""


def mutated(parser: str, data: bytes, seed: int) -> bytes | None:
    """An input like `data`, which has JSON in it; None for one without."""
    draw = random.Random(seed)
    before, after = b"", b""
    if parser == PREFIXED:
        size = int.from_bytes(data[:8], "little")
        data, after = data[8 : 8 + size], data[8 + size :]
    parts = data.split(b"\0") if parser == "adapter" else [data]
    index = draw.randrange(len(parts))
    try:
        document = json.loads(parts[index])
    except (ValueError, RecursionError):
        return None
    root = [document]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        _mutate(root, draw)
    text = json.dumps(root[0], sort_keys=True, separators=(",", ":"), ensure_ascii=draw.random() < 0.1)
    parts[index] = text.encode("utf-8", "surrogatepass")
    joined = b"\0".join(parts)
    if parser == PREFIXED:
        before = len(joined).to_bytes(8, "little")
        if draw.random() < 0.2:
            after = bytes(draw.randrange(64))
    return before + joined + after


def _places(value: object) -> list[tuple[Any, Any]]:
    """Each container, and each key in it."""
    if not isinstance(value, dict | list):
        return []
    found: list[tuple[Any, Any]] = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        found += [(value, key), *_places(inner)]
    return found


def _mutate(root: list[object], draw: random.Random) -> None:
    places = _places(root)
    place, key = draw.choice(places)
    value = place[key]
    kind = draw.randrange(8)
    if kind == 0 and place is not root:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place[draw.choice([draw.choice(TEXTS), f"{key}x", key.upper()])] = place.pop(key)
    elif kind == 2 and isinstance(place, list):
        place.insert(key, copy.deepcopy(value))
    elif kind == 3:
        other, where = draw.choice(places)
        place[key] = copy.deepcopy(other[where] if other is not root else draw.choice(OTHERS))
    elif type(value) is int and kind < 7:
        place[key] = draw.choice((value + 1, value - 1, value * 2, -value, draw.choice(NUMBERS)))
    elif isinstance(value, str) and value and kind < 7:
        at = draw.randrange(len(value))
        before, after = value[:at], value[at:]
        place[key] = draw.choice((before + after[1:], before + draw.choice(TEXTS) + after, value * 2))
    else:
        place[key] = copy.deepcopy(draw.choice((*NUMBERS, *TEXTS, *OTHERS)))
