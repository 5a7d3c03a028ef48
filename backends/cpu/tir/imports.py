"""Imports TVM without what it would pull in.

tvm_ffi, which tvm imports, imports torch whenever torch is installed, because of a symbol conflict on Windows; that
costs seconds and hundreds of megabytes in a process that may never use it. Here the import is made with torch hidden;
torch can be imported afterwards as usual, and one that is already there stays.
"""

from __future__ import annotations

import importlib
import sys
from threading import Lock
from types import ModuleType

_lock = Lock()


def import_tvm() -> ModuleType:
    """Return the module `tvm`, imported without importing torch; MemoryError where its import runs out of memory."""
    with _lock:
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
