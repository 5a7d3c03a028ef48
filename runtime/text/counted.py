"""Numbers of things in messages: "1 tensor", "33 tensors"."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, which takes an s but for one."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
