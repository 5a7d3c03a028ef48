"""Blobs of an artifact that nobody need have signed, for who shows something of it: a few stored bytes stand for any
number of them."""

from __future__ import annotations

from pyc.runtime.artifact.reader import Artifact


def small_blob(artifact: Artifact, name: str, most_bytes: int) -> bytes | None:
    """Return a blob's bytes as `Artifact.blob` does; None, and nothing is read, where it has more than `most_bytes`."""
    is_large = any(blob.name == name and blob.raw_bytes > most_bytes for blob in artifact.header.blobs)
    return None if is_large else artifact.blob(name)
