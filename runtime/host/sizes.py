"""Numbers of bytes as people write them: 2000000000, 2GB or 1.5GiB."""

from __future__ import annotations

import re

EXPECTED = "a size such as 500MB, 2GB or 1.5GiB"

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_size = re.compile(r"(\d{1,18})(?:\.(\d{1,6}))?\s*(|k|m|g|t|ki|mi|gi|ti)b?", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Return the bytes of a size, rounded down to whole ones; None for what is none. Units are decimal, or binary."""
    found = _size.fullmatch(text.strip())
    if found is None:
        return None
    fraction = found[2] or ""
    scale: int = 10 ** len(fraction)
    return int(found[1] + fraction) * _UNITS[found[3].lower()] // scale
