"""The one way to open a file of a checkpoint or an adapter: by a relative name that stays inside.

A directory is taken as it is: symbolic links in it are refused. Only the Hugging Face cache is made of links
(snapshots/<commit>/<name> -> ../../blobs/<digest>), and there they may lead to the same model's folder.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import SourcePath
from pyc.models.messages import quoted
from pyc.models.strict_json import MAX_MANY_VALUES, MAX_VALUES, decode
from pyc.runtime.artifact.format import is_plain_name
from pyc.runtime.artifact.kinds import SHORT_BYTES, instead_of_file
from pyc.runtime.errors import IngestError, PycError
from pyc.runtime.host.open_files import open_files_remedy

MAX_BYTES: Mapping[str, int] = {
    "tokenizer.json": 64 << 20,
    "tokenizer_config.json": 16 << 20,
    "model.safetensors.index.json": 32 << 20,
}
"""Largest files that are read whole; those not named here may have 4 MiB. Gemma's tokenizer.json has 33 MB."""
MAX_OTHER_BYTES = 4 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of files, all found by `locate` and read through `files`; `label` is what messages call it."""

    root: Path
    label: str
    files: SourceFiles
    links_within: Path | None = None
    error: type[PycError] = IngestError

    def locate(self, name: str) -> Path | None:
        """Return where the file `name` really lies, or None when there is none.

        Raises the directory's error when the name leads outside, or to something that is not a regular file.
        """
        if not is_plain_name(name):
            raise self.error(f"{self.label}: the file name {quoted(name)} is not a plain relative name")
        path = self.root / name
        try:
            real = path.resolve(strict=True)
        except FileNotFoundError:
            if path.is_symlink():
                raise self.error(
                    f"{self.label}: {name} is a link to a file that is not there; download it again"
                ) from None
            return None
        except (OSError, RuntimeError) as problem:
            raise self.error(f"{self.label}: {name} cannot be opened: {problem}") from problem
        if real != path and (self.links_within is None or not real.is_relative_to(self.links_within)):
            raise self.error(
                f"{self.label}: {name} is a symbolic link that leads out; links are followed only inside "
                "the Hugging Face cache, so copy the file"
            )
        try:
            if not stat.S_ISREG(real.stat().st_mode):
                raise self.error(f"{self.label}: {name} is not a regular file")
            self.files.size_bytes(str(real))
        except OSError as problem:
            remedy = _remedy(problem)
            raise self.error(
                f"{self.label}: {name} cannot be read: {problem.strerror or problem}{remedy}"
            ) from problem
        return real

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file, or None when there is none; a Git LFS pointer or a web page is refused."""
        path = self.locate(name)
        if path is None:
            return None
        try:
            limit = MAX_BYTES.get(name, MAX_OTHER_BYTES)
            size = self.files.size_bytes(str(path))
            if size > limit:
                raise self.error(f"{self.label}: {name} has {size} bytes, expected at most {limit}")
            data = self.files.read(str(path))
        except OSError as problem:
            raise self.error(
                f"{self.label}: {name} cannot be read: {problem.strerror or problem}{_remedy(problem)}"
            ) from problem
        if advice := instead_of_file(data[:SHORT_BYTES]):
            raise self.error(f"{self.label}: {name}: {advice}")
        return data

    def parse(self, name: str, kind: type[T]) -> T | None:
        """Return a JSON file as a value of `kind`, or None when there is none."""
        data = self.read(name)
        many = MAX_MANY_VALUES if name in MAX_BYTES else MAX_VALUES
        return None if data is None else decode(data, kind, f"{self.label}: {name}", self.error, many)

    def names(self) -> tuple[str, ...]:
        """Return the names of the entries directly in the directory, sorted."""
        try:
            return tuple(sorted(entry.name for entry in self.root.iterdir()))
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise self.error(f"{self.label}: cannot be listed: {reason}{_remedy(problem)}") from problem

    def names_in(self, folder: str) -> tuple[str, ...]:
        """Return the names of the entries of a folder in the directory, sorted; none where there is no such folder."""
        try:
            return tuple(sorted(entry.name for entry in (self.root / folder).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise self.error(f"{self.label}: {folder} cannot be listed: {reason}{_remedy(problem)}") from problem

    def source_paths(self, names: Iterable[str]) -> tuple[SourcePath, ...]:
        """Return the named files that exist, for provenance, sorted by name."""
        found = ((name, self.locate(name)) for name in sorted(set(names)))
        return tuple(SourcePath(name, str(path)) for name, path in found if path is not None)


def _remedy(problem: OSError) -> str:
    return f"; {open_files_remedy()}" if problem.errno == errno.EMFILE else ""
