"""Dumps of a module as it passes through a build, one file a pass: what `pyc build --dump-ir` writes.

    00-ingest.ir  01-fuse_lora.ir ...                        as they run, the common passes
    05-cpu-fuse_gate_up.ir ...                               then those of each backend
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from pyc.compiler.ir import Module
from pyc.compiler.module_text import module_text
from pyc.runtime.errors import ArtifactError

_NAME = re.compile(r"\d\d+-[\w-]+\.ir")
_FIRST_LINE = re.compile(rb"\w+\((?:\w+: \w+\[[\w, ]*\](?:, )?)*\) -> \S+ \{\n")
"""The head of a graph's first function, as `compiler.text` prints it."""
_HEAD_BYTES = 4096


class IrDump:
    """Writes what a module is after each pass into a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Make the folder, or empty it of former dumps. Raises ArtifactError when there is something else in it, or its
        name is empty."""
        if not os.fspath(folder):  # abspath takes it for the current one
            raise ArtifactError("dump_ir: the name of the folder to write is empty; give one")
        self._folder = Path(os.path.abspath(folder))
        self._count = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            found = sorted(self._folder.iterdir())
        except OSError as error:
            raise ArtifactError(f"dump_ir: {self._folder}: {error.strerror}; name a folder that can be made") from error
        for path in found:
            if not _is_dump(path):
                raise ArtifactError(f"dump_ir: {self._folder} holds {path.name!r}, no dump; name a new or empty folder")
        for path in found:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise ArtifactError(
                    f"dump_ir: {path}: the former dump cannot be removed: {error.strerror}; name a new or empty folder"
                ) from error

    def __call__(self, name: str, module: Module) -> None:
        """Write `module`, as it is after the pass called `name`; ArtifactError where the file cannot be written."""
        path = self._folder / f"{self._count:02}-{name}.ir"
        is_ours = False
        try:
            with path.open("x", encoding="utf-8") as file:  # never through a link that came since the folder was empty
                is_ours = True
                file.write(module_text(module))
        except FileExistsError as error:
            raise ArtifactError(f"dump_ir: {path}: another process made it just now; name a new folder") from error
        except OSError as error:
            if is_ours:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise ArtifactError(f"dump_ir: {path}: {error.strerror}; free some space or name another folder") from error
        self._count += 1


def _is_dump(path: Path) -> bool:
    """Whether a file is one that a build wrote: by its name and its first line, as what a build reads may have such a
    name. An empty one is of a build that was killed."""
    if not _NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            begins = file.read(_HEAD_BYTES)
    except OSError as error:
        raise ArtifactError(f"dump_ir: {path}: {error.strerror}; name a new or empty folder") from error
    return not begins or _FIRST_LINE.match(begins) is not None
