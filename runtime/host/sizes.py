"""Sizes and durations as people write and read them: 2000000000, 2GB or 1.5GiB, and 1.23 MB."""

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


def human_bytes(size_bytes: int) -> str:
    """Three significant digits in decimal units: 1234567 is "1.23 MB"."""
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.4g} TB"


def human_count(count: int) -> str:
    """Three significant digits: 596049920 is "596 million"."""
    for unit, name in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if count >= unit * 0.9995:
            return f"{count / unit:.3g} {name}"
    return str(count)


def human_duration(elapsed_s: float) -> str:
    """ "0.4 s", "12 s", "3:05" or "1:02:03"."""
    if elapsed_s < 10:
        return f"{elapsed_s:.1f} s"
    whole = round(elapsed_s)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
