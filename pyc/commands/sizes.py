"""Sizes and durations as people read them."""


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
