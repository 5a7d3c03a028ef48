"""Imports TVM without what it would pull in.

tvm_ffi, which tvm imports, imports torch whenever torch is installed, because of a symbol conflict on Windows; that
costs seconds and hundreds of megabytes in a process that may never use it. Here the import is made with torch hidden;
torch can be imported afterwards as usual, and one that is already there stays.
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
_lock = Lock()


def import_tvm() -> ModuleType:
    """Return the module `tvm`, imported without importing torch; MemoryError where its import runs out of memory."""
    with _lock, _without_home():
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
def _without_home() -> Iterator[None]:
    """Give TVM's import, if it is still to come, a folder for a cache that pyc never lets it write."""
    if "tvm" in sys.modules or CACHES in os.environ:
        yield
        return
    os.environ[CACHES] = "/"
    try:
        yield
    finally:
        os.environ.pop(CACHES, None)
