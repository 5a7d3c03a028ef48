"""Where zig keeps the C library's stubs that it makes for each target (2 MB): the cache's folder `zig-2`.

zig writes there even when it only reads. So where the folder cannot be written, and with the cache turned off, zig gets
a private one for the time of the build, with a copy of what there is. zig does not notice damage in it: a compiler that
fails is tried once more with an empty one, and if that mends it, the damaged folder is removed; on a full disk it is
not damaged, and a private one takes its place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from threading import Lock

from pyc.compiler.files.work_folder import work_folder
from pyc.runtime.host.cache_folder import is_zig_cache

logger = logging.getLogger(__name__)

MOST_COPIED_BYTES = 64 << 20


class ZigCache:
    """zig's cache of one build, for use by several threads. `shared` is the folder that builds have in common."""

    def __init__(self, shared: Path | None) -> None:
        self.shared = shared
        self._lock = Lock()
        self._private = contextlib.ExitStack()
        self._folder: Path | None = None

    def folder(self) -> Path:
        """Return the folder to use; raises LowerError when none can be made."""
        with self._lock:
            if self._folder is None:
                if self.shared is not None and os.path.lexists(self.shared) and not is_zig_cache(self.shared):
                    self._folder = self._make_private()
                    may_be_read = os.access(self.shared, os.R_OK | os.X_OK) or not self.shared.is_dir()
                    why = "is not zig's cache" if may_be_read else "may not be read"
                    logger.warning("cache: %s %s; the compiler uses a temporary one", self.shared, why)
                elif self.shared is not None and _is_writable(self.shared):
                    self._folder = self.shared
                else:
                    self._folder = self._make_private()
                    if self.shared is not None:
                        logger.warning("cache: %s cannot be written; the compiler uses a temporary one", self.shared)
                        _copy(self.shared, self._folder)
            return self._folder

    def leave(self, full: Path) -> None:
        """Use `full` no more, on whose disk a compiler found no space; what is in it stays."""
        with self._lock:
            if full == self._folder:
                self._folder = self._make_private()
                logger.warning("cache: no space left in %s; the compiler uses a temporary one", full)

    def drop(self, damaged: Path) -> None:
        """Remove `damaged`, with which a compiler failed that an empty folder did not fail."""
        with self._lock:
            if damaged != self._folder:
                return  # another thread was first
            self._folder = None
            logger.warning("cache: %s is damaged; making it again", damaged)
            if damaged == self.shared:
                aside = damaged.with_name(f"zig-damaged-{secrets.token_hex(4)}")
                with contextlib.suppress(OSError):
                    damaged.rename(aside)
                    shutil.rmtree(aside, ignore_errors=True)
                if damaged.exists():
                    self._folder = self._make_private()

    def close(self) -> None:
        """Remove the private folder, if there is one."""
        with self._lock:
            self._private.close()
            self._folder = None

    def _make_private(self) -> Path:
        return self._private.enter_context(work_folder("zig"))


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in `folder`; tried, since neither root nor a read-only mount shows in modes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    """Copy what can be read; the compiler makes what is missing again."""
    size = 0
    with contextlib.suppress(OSError):
        for root, _, names in os.walk(source):
            for name in names:
                size += (Path(root) / name).stat(follow_symlinks=False).st_size
        if size <= MOST_COPIED_BYTES:
            shutil.copytree(source, target, dirs_exist_ok=True, copy_function=shutil.copyfile)
