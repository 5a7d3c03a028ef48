"""Imports TVM without what it would pull in.

tvm_ffi, which tvm imports, imports torch whenever torch is installed, because of a symbol conflict on Windows; that
costs seconds and hundreds of megabytes in a process that may never use it. Here the import is made with torch hidden;
torch can be imported afterwards as usual, and one that is already there stays.

The user's variables that have TVM load other libraries than its wheel's are hidden, too: what a build compiles depends
on the version of the wheel, which is part of the cache's keys.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from types import ModuleType

CACHES = "XDG_CACHE_HOME"
"""Without it the import of TVM asks for the home directory, and fails for a user who has none."""
HIDDEN = ("TVM_LIBRARY_PATH", "TVM_USE_RUNTIME_LIB", "TVM_DEVICE_BACKEND_AUTOLOAD")
"""Read by TVM when it is imported, and never after."""
_lock = Lock()


def import_tvm() -> ModuleType:
    """Return the module `tvm`, imported without importing torch; MemoryError where its import runs out of memory."""
    with _lock, _own_variables():
        if "tvm" in sys.modules or "torch" in sys.modules:
            return importlib.import_module("tvm")
        hidden: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]  # None hides a module
        hidden["torch"] = None
        try:
            return importlib.import_module("tvm")
        except SystemError as error:  # what the interpreter itself raises when an allocation failed unseen
            raise MemoryError(f"while TVM was imported: {error}") from error
        finally:
            if hidden.get("torch") is None:
                hidden.pop("torch", None)


@contextmanager
def _own_variables() -> Iterator[None]:
    """Give TVM's import, if it is still to come, a folder for a cache that pyc never lets it write, and not HIDDEN."""
    if "tvm" in sys.modules:
        yield
        return
    hidden = {name: os.environ.pop(name) for name in HIDDEN if name in os.environ}
    is_set = CACHES in os.environ
    os.environ.setdefault(CACHES, "/")
    try:
        yield
    finally:
        if not is_set:
            os.environ.pop(CACHES, None)
        os.environ.update(hidden)
