"""What to do where a native module, or a shared library of one, is there and cannot be loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pyc.runtime.host.signal_handlers import unless_signalled

_UNMAPPED = "failed to map segment"
"""What the dynamic linker says of a library that the system does not map as code, for whatever reason."""


def unloadable_remedy(error: BaseException) -> str:
    """Return why the system keeps a module from being loaded and what to do about it, as the end of a sentence."""
    return noexec_remedy(error) or "there is too little memory, or its installation is broken"


def noexec_remedy(error: BaseException) -> str | None:
    """Return what to do about a file system that is mounted noexec, as the end of a sentence; None where that is not
    why a module cannot be loaded."""
    for cause in _causes(error):
        reason = str(cause)
        if _UNMAPPED in reason and _is_noexec(getattr(cause, "path", None) or reason.partition(": ")[0].strip()):
            return (
                "its file system is mounted noexec, so that no native module is loaded from it: install pyc in another "
                "place, which PYC_VENV=... names for the scripts of a bundle, or have this one mounted with exec"
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and what it came from, the first cause last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_noexec(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except unless_signalled(OSError, ValueError):  # gone, or no path at all
        return False
