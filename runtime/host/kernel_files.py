"""Text of /proc and /sys: lines that newlines end, and names of others among them, which may hold anything else."""

from __future__ import annotations

import os
from pathlib import Path

from pyc.runtime.host.signal_handlers import unless_signalled


def kernel_lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; none where it cannot be read.

    A newline alone ends a line: the kernel escapes it in names, and leaves U+2028 and the others that
    `str.splitlines` breaks at. Bytes that are not UTF-8 are as in names of files.
    """
    try:
        return os.fsdecode(path.read_bytes()).removesuffix("\n").split("\n")
    except unless_signalled(OSError):
        return []


def kernel_text(path: Path) -> str:
    """Return what a file of one value says, without space around it; nothing where it cannot be read."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except unless_signalled(OSError):
        return ""
