"""How large the stack of a thread is: kernels keep tiles on the stack of whoever calls them."""

from __future__ import annotations

import ctypes
import resource
import threading

from pyc.runtime.errors import RunError

BASE_BYTES, BYTES_A_COLUMN = 160 << 10, 1 << 10
"""What a stack has to hold (kernels with AMX take 96 KiB, and who calls them some), and more for each number of a
head's keys: tiles of 256 tokens lie there."""
_ATTRIBUTES_BYTES = 256
"""More than pthread_attr_t has anywhere."""

_checked = threading.local()
"""Each thread is asked once."""


def require_stack(size_bytes: int) -> None:
    """Raise RunError on a thread with less of a stack, which would end the process by SIGSEGV."""
    known = getattr(_checked, "size_bytes", 0)
    if known < size_bytes:
        known = _checked.size_bytes = _stack_bytes()
    if known >= size_bytes:
        return
    who, remedy = "this thread", f"give threads more before they are started: threading.stack_size({size_bytes})"
    if _is_main():
        who, remedy = "the main thread", f"start the process with more: ulimit -s {-(-size_bytes >> 10)}"
    raise RunError(f"{who} has a stack of {known} bytes, and kernels of this model take up to {size_bytes}; {remedy}")


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _stack_bytes() -> int:
    """The size of this thread's stack; where there is no limit, and where nobody tells, more than any needs.

    The GNU library tells of the main thread as far as it may grow, and of one that forked still in the child, where it
    is the main one. Others tell of the main one what it has now.
    """
    unknown = 1 << 62
    libc = ctypes.CDLL(None)
    if _is_main() and not hasattr(libc, "gnu_get_libc_version"):
        return _limit(unknown)
    try:
        ask, of = libc.pthread_getattr_np, libc.pthread_attr_getstacksize
        libc.pthread_self.restype = ctypes.c_ulong
        free = libc.pthread_attr_destroy
    except AttributeError:
        return unknown
    attributes, size = ctypes.create_string_buffer(_ATTRIBUTES_BYTES), ctypes.c_size_t()
    if ask(ctypes.c_ulong(libc.pthread_self()), attributes):  # of the main one it reads /proc
        return _limit(unknown) if _is_main() else unknown
    failed = of(attributes, ctypes.byref(size))
    free(attributes)
    return unknown if failed else size.value


def _limit(unknown: int) -> int:
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return unknown if limit == resource.RLIM_INFINITY else limit
