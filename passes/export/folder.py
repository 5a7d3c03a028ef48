"""A folder that an export fills: it appears whole, or not at all.

What an export leaves that is killed, the next one to the same place removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from pyc.compiler.files.work_folder import abandoned
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host import unfinished
from pyc.runtime.host.output_file import output_path
from pyc.runtime.host.temporary_files import create_locked_folder, sync_folder
from pyc.runtime.host.umask import current_umask

_LETTERS, _COUNT = "bcdfghjkmnpqrstvwxz", 8
"""At the end of names of folders that are not whole: no day, number or word, which a user's folder might end with."""


@contextlib.contextmanager
def new_folder(target: str | os.PathLike[str], *, mode: int | None = None) -> Iterator[Path]:
    """Yield a folder beside `target`, which becomes that at the end, of `mode`, or as the umask says.

    Raises ArtifactError when something is there that is not an empty folder, and when the place cannot be written.
    """
    path = require_room(target)
    _sweep(path)
    made: list[Path] = []
    locks: list[int] = []

    def drop() -> None:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)

    def make() -> Path:
        made.append(path.with_name(_prefix(path) + "".join(secrets.choice(_LETTERS) for _ in range(_COUNT))))
        made[-1].mkdir(0o700)
        return made[-1]

    with unfinished.held(drop):
        try:
            locks.append(create_locked_folder(make))
            folder = made[-1]
            yield folder
            folder.chmod(0o777 & ~current_umask() if mode is None else mode)
            _sync(folder)
            _check(path)
            if path.is_dir():
                path.rmdir()
            folder.rename(path)
            sync_folder(path.parent)
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be written: {error.strerror or error}") from error
        finally:
            drop()
            for descriptor in locks:
                os.close(descriptor)


def require_room(target: str | os.PathLike[str]) -> Path:
    """Return where a new folder may be written as `target`. Raises ArtifactError where none may."""
    if not os.fspath(target):
        raise ArtifactError("the name of the folder to write is empty; give one")
    if os.fspath(target) == "-":
        raise ArtifactError("-: a folder is written, not standard output; give its name, or ./- for one of that name")
    path = output_path(os.path.abspath(os.fspath(target)))
    _check(path)
    return path


def _prefix(path: Path) -> str:
    """What the names of folders begin with that are to become `path`."""
    return f".{path.name}.pyc-"


def _sweep(path: Path) -> None:
    """Remove what an export to `path` left that was killed: a folder that nobody has locked."""
    own = re.compile(f"{re.escape(_prefix(path))}[{_LETTERS}]{{{_COUNT}}}")
    with contextlib.suppress(OSError):
        for entry in os.scandir(path.parent):
            if own.fullmatch(entry.name) and (descriptor := abandoned(entry.path)) is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(descriptor)


def _sync(folder: Path) -> None:
    """Have all files reach the disk before the folder has its name. Raises OSError."""
    for place, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(place, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(place))


def _check(path: Path) -> None:
    try:
        if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
            raise ArtifactError(f"{path}: is there already and is not an empty folder; choose another")
        if not path.parent.is_dir():
            raise ArtifactError(f"{path}: the directory {path.parent} does not exist; make it, or choose another")
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error
