"""Guards weights that are mapped from a file, so that a file which is cut ends a run in words and not the process.

Libraries do it (templates/cpu/include/pyc_guard.h): a signal handler puts zeros in place of what is lost and says so. A
process has one handler: the first library with mapped weights guards for all, and stays loaded for that.
"""

from __future__ import annotations

import ctypes

import numpy as np

from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cpu.libraries import keep_loaded
from pyc.runtime.host.forks import ForkSafeLock
from pyc.runtime.sources.local import HeldFile

_PATIENCE_S = 5.0
_lock = ForkSafeLock(_PATIENCE_S)  # the finalizer of a model may release a guard in the middle of another's making
_guarding: list[ctypes.CDLL] = []
"""The library that guards, once there is one."""


class Guard:
    """Watches the file that a library's weights are mapped from. It has to go before the mapping does."""

    def __init__(self, library: ctypes.CDLL, file: HeldFile) -> None:
        """Begin to guard `file` and to tell `library`. Raises RunError when the system has no handler for it."""
        self._file = file
        start = np.frombuffer(file.view, np.uint8).ctypes.data
        with _lock.lock:
            if not _guarding:
                keep_loaded(library)  # before it is asked to: it handles signals from then on
                _guarding.append(library)
            self._lost: int | None = _guarding[0].pyc_guard(start, len(file.view), file.descriptor)
        if self._lost is None:
            file.close()
            raise RunError(f"{file.path}: its mapping cannot be guarded, too many are; use --no-mmap (mode 'pread')")
        library.pyc_watch(self._lost)

    def check(self) -> None:
        """Raise ArtifactError when the file has been written to since it was opened."""
        self._file.check()

    def error(self) -> ArtifactError:
        """Return what a run says whose weights are lost."""
        return self._file.changed("cut, or not readable any more")

    def release(self) -> None:
        """Guard it no more. The library must not run from now on."""
        with _lock.lock:
            lost, self._lost = self._lost, None
            if lost is not None:
                _guarding[0].pyc_unguard(lost)
                self._file.close()
