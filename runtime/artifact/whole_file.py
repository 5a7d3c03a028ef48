"""The bytes of an artifact's file as it was opened, each verified: what its name means by then changes nothing."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator

from pyc.runtime.artifact.format import HEADER_OFFSET, PRELUDE_BYTES, payload_offset
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError


def whole_file(artifact: Artifact) -> Iterator[bytes | memoryview]:
    """Yield the file's bytes in order, each verified. Raises ArtifactError, also for a file that was written to."""
    front = artifact.front()
    header = front[HEADER_OFFSET : HEADER_OFFSET + artifact.prelude.header_size]
    if front[:PRELUDE_BYTES] != artifact.prelude.pack() or hashlib.sha256(header).digest() != (
        artifact.prelude.header_sha256
    ):
        raise ArtifactError(f"{artifact.path}: was written to while it was read")
    yield front
    start = payload_offset(artifact.prelude.header_size)
    done = len(front) - start
    for number, chunk in enumerate(artifact.header.chunks):
        if chunk.offset > done:
            yield bytes(chunk.offset - done)
        yield _stored(artifact, number)
        done = chunk.offset + chunk.stored_bytes


def _stored(artifact: Artifact, number: int) -> memoryview:
    found: list[memoryview] = []
    artifact.fetch_chunks([number], lambda _, stored: found.append(stored))
    return found[0]


class WholeFile(io.RawIOBase):
    """The same as a file to read from, in order."""

    def __init__(self, artifact: Artifact) -> None:
        self._pieces = whole_file(artifact)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]  # a buffer, in the types' words
        """Fill some of `target`; 0 at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        count = min(len(target), len(self._left))
        target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
