"""What the documents about an artifact say, found in its header."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyc.models.files import MAX_OTHER_BYTES
from pyc.models.licence_files import is_licence
from pyc.runtime.artifact.format import Header
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.small_blobs import small_blob
from pyc.runtime.artifact.trust.subjects import artifact_digest
from pyc.runtime.artifact.whole_file import whole_file
from pyc.runtime.text.json_text import parse_json

HOMEPAGE = "https://pypi.org/project/pyc-compiler/"
MOST_LICENCE_BYTES = 32 << 20
"""Of all licences together."""


@dataclass(frozen=True, slots=True)
class Facts:
    """An artifact: its file's name and SHA-256, its header and that one's SHA-256, and the licences that it carries, by
    the name of their file; None for one that is too large to be put into a document."""

    name: str
    file_sha256: str
    header_sha256: str
    header: Header
    licences: Mapping[str, bytes | None]

    @property
    def id(self) -> uuid.UUID:
        """A name for the content: equal artifacts have equal ones."""
        return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:sha256:{self.header_sha256}")

    @property
    def digest(self) -> str:
        """What `pyc trust revoke` takes; the SHA-256 of the file revokes nothing."""
        return artifact_digest(bytes.fromhex(self.header_sha256))

    @property
    def task(self) -> str:
        """What the model does, as model hubs call it."""
        return "text-generation" if self.header.model.kind == "decoder" else "feature-extraction"

    def recipe(self) -> object:
        """The recipe; its text where that is no JSON."""
        try:
            return parse_json(self.header.provenance.recipe)
        except (ValueError, RecursionError):
            return self.header.provenance.recipe


def facts_of(artifact: Artifact, path: Path) -> Facts:
    """Read what the documents say of an open artifact, whose file is called `path`, and verify all of it.

    The SHA-256 is that of the bytes which were verified, whatever the name means by now. Raises ArtifactError.
    """
    artifact.verify_all()
    return Facts(
        path.name,
        _file_sha256(artifact),
        artifact.prelude.header_sha256.hex(),
        artifact.header,
        _licences(artifact),
    )


def _licences(artifact: Artifact) -> dict[str, bytes | None]:
    """The licences, as far as a build would have taken them: an artifact that nobody signed may have any number."""
    found: dict[str, bytes | None] = {}
    left_bytes = MOST_LICENCE_BYTES
    for name in (blob.name for blob in artifact.header.blobs if is_licence(blob.name)):
        found[name] = text = small_blob(artifact, name, min(left_bytes, MAX_OTHER_BYTES))
        left_bytes -= len(text or b"")
    return found


def encoded(text: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(text).decode()


def _file_sha256(artifact: Artifact) -> str:
    digest = hashlib.sha256()
    for piece in whole_file(artifact):
        digest.update(piece)
    return digest.hexdigest()
