"""The files of a bundle, before it has a form: each a name, and text or the file that holds its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file by its name in the bundle. `content` is its bytes, or where they lie; programs may be run."""

    name: str
    content: bytes | Path
    is_program: bool = False

    @property
    def mode(self) -> int:
        """Its permissions, for everybody to read."""
        return 0o755 if self.is_program else 0o644

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    def start(self, size_bytes: int) -> bytes:
        """Its first bytes. Raises OSError."""
        if isinstance(self.content, bytes):
            return self.content[:size_bytes]
        with open(self.content, "rb") as source:
            return source.read(size_bytes)

    def write(self, target: BinaryIO) -> str:
        """Write its bytes; return their SHA-256. Raises OSError."""
        digest = hashlib.sha256()
        if isinstance(self.content, bytes):
            digest.update(self.content)
            target.write(self.content)
            return digest.hexdigest()
        with open(self.content, "rb") as source:
            while piece := source.read(PIECE_BYTES):
                digest.update(piece)
                target.write(piece)
        return digest.hexdigest()

    def sha256(self) -> str:
        """The SHA-256 of its bytes. Raises OSError."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with open(self.content, "rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()


def checksums(files: Iterable[BundleFile]) -> BundleFile:
    """SHA256SUMS of the files, as `sha256sum -c` reads it."""
    lines = "".join(f"{file.sha256()}  {file.name}\n" for file in sorted(files, key=lambda file: file.name))
    return BundleFile("SHA256SUMS", lines.encode())
