"""The files of a bundle, before it has a form: each a name, and text or what holds its bytes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.whole_file import WholeFile
from pyc.runtime.host.output_file import require_showable

PIECE_BYTES = 1 << 20
FOLDER_MODE = 0o755
"""Permissions of its folders: for everybody to enter, as everybody may read the files."""


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file by its name in the bundle. `content` is its bytes, where they lie, or the open artifact that it is, whose
    bytes are verified as they are read; programs may be run.

    Raises ArtifactError for a name that a manifest or a list of digests cannot have.
    """

    name: str
    content: bytes | Path | Artifact
    is_program: bool = False

    def __post_init__(self) -> None:
        require_showable(self.name)

    @property
    def mode(self) -> int:
        """Its permissions, for everybody to read."""
        return 0o755 if self.is_program else 0o644

    @property
    def size_bytes(self) -> int:
        """Its size."""
        if isinstance(self.content, Path):
            return self.content.stat().st_size
        return self.content.size_bytes if isinstance(self.content, Artifact) else len(self.content)

    def open(self) -> BinaryIO:
        """A file to read its bytes from. Raises OSError, and ArtifactError while it is read."""
        if isinstance(self.content, Artifact):
            return cast("BinaryIO", io.BufferedReader(WholeFile(self.content), PIECE_BYTES))
        return open(self.content, "rb") if isinstance(self.content, Path) else io.BytesIO(self.content)

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes. Raises OSError and ArtifactError."""
        with self.open() as source:
            while piece := source.read(PIECE_BYTES):
                yield piece

    def start(self, size_bytes: int) -> bytes:
        """Its first bytes. Raises OSError and ArtifactError."""
        with self.open() as source:
            return source.read(size_bytes)

    def write(self, target: BinaryIO) -> str:
        """Write its bytes; return their SHA-256. Raises OSError and ArtifactError."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
            target.write(piece)
        return digest.hexdigest()

    def sha256(self) -> str:
        """The SHA-256 of its bytes. Raises OSError and ArtifactError."""
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()


def checksums(files: Iterable[BundleFile]) -> BundleFile:
    """SHA256SUMS of the files, as `sha256sum -c` reads it."""
    lines = "".join(f"{file.sha256()}  {file.name}\n" for file in sorted(files, key=lambda file: file.name))
    return BundleFile("SHA256SUMS", lines.encode())
