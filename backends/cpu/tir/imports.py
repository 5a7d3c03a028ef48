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
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

CACHES = "XDG_CACHE_HOME"
"""Without it the import of TVM asks for the home directory, and fails for a user who has none."""
HIDDEN = ("TVM_LIBRARY_PATH", "TVM_USE_RUNTIME_LIB", "TVM_DEVICE_BACKEND_AUTOLOAD")
"""Read by TVM when it is imported, and never after."""
_lock = threading.Lock()


class _NoTorch(threading.local):
    """A finder of modules that finds no torch for a thread that hides it; others import it meanwhile, and so does a
    child that is forked by one of them."""

    is_hidden = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a torch that is hidden; everything else is left to the other finders."""
        if name == "torch" and self.is_hidden:
            raise ModuleNotFoundError("torch is hidden while TVM is imported", name=name)
        return None


def import_tvm() -> ModuleType:
    """Return the module `tvm`, imported without importing torch; MemoryError where its import runs out of memory."""
    with _lock:
        if "tvm" in sys.modules:
            return importlib.import_module("tvm")
        finder = _NoTorch()
        finder.is_hidden = True
        sys.meta_path.insert(0, finder)
        try:
            with _own_variables():
                return importlib.import_module("tvm")
        except SystemError as error:  # what the interpreter itself raises when an allocation failed unseen
            raise MemoryError(f"while TVM was imported: {error}") from error
        finally:
            sys.meta_path.remove(finder)


@contextmanager
def _own_variables() -> Iterator[None]:
    """Hide what is in HIDDEN, and give a process without a home a folder for a cache, that pyc never lets TVM write.

    Other threads see that, too: nothing is changed where there is no need.
    """
    hidden = {name: os.environ.pop(name) for name in HIDDEN if name in os.environ}
    is_given = CACHES not in os.environ and not _has_home()
    if is_given:
        os.environ[CACHES] = "/"
    try:
        yield
    finally:
        if is_given:
            os.environ.pop(CACHES, None)
        os.environ.update(hidden)


def _has_home() -> bool:
    try:
        Path.home()
    except RuntimeError:
        return False
    return True
