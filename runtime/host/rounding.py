"""Whole numbers that are rounded up: how many pieces cover a size, and the multiple that does."""


def ceil_div(value: int, divisor: int) -> int:
    """Return the least whole number that is not less than value / divisor."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple
