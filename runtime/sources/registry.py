"""An artifact in an OCI registry: `oci://host/repository:tag`, or `@sha256:digest` in the place of the tag.

The manifest says which layer is the artifact; that is a file behind a web server, read by ranges as any other, so that
a machine takes what it needs of it. Signatures and digests are the artifact's own: a registry is not believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from pyc.runtime.errors import ArtifactError, FetchError
from pyc.runtime.sources.http import HttpSource, WithoutRanges
from pyc.runtime.sources.protocol import PATIENT
from pyc.runtime.sources.registry_session import DIGEST, Reference, RegistrySession, parse_reference

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MANIFEST_TYPES = (MANIFEST, "application/vnd.oci.image.index.v1+json")
FILE_PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"
HEADER_SHA256 = "pyc.header.sha256"
"""The annotation of an artifact that holds the SHA-256 of its header, 64 hexadecimal digits. A header has the digest of
every chunk, so that a machine which fetches a part knows that it is of this artifact."""
PRELUDE_DIGEST = slice(32, 64)
"""Where an artifact has it (docs/artifact-format.md)."""
SUFFIX = ".pyca"
PIECE_BYTES = 4 << 20


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str
    size: int
    media_type: str = msgspec.field(name="mediaType", default="")
    annotations: dict[str, str] = {}


class _Manifest(msgspec.Struct, frozen=True):
    layers: tuple[_Descriptor, ...] = ()
    manifests: tuple[_Descriptor, ...] = ()


def open_registry(url: str) -> HttpSource:
    """Return the artifact that a name in a registry means, as a source. Raises FetchError, MissingArtifactError for a
    name that the registry lacks, and ArtifactError for a manifest that holds no artifact."""
    reference = parse_reference(url)
    session = RegistrySession(reference)
    layer = _artifact(reference, _layers(session))
    return _blob(session, layer)


def open_beside(url: str, suffix: str) -> HttpSource | None:
    """Return the file of the same manifest that has the artifact's name and `suffix`; None where there is none.

    Raises as `open_registry` does.
    """
    reference = parse_reference(url)
    session = RegistrySession(reference)
    layers = _layers(session)
    wanted = path_in(_artifact(reference, layers).annotations) + suffix
    found = next((layer for layer in layers if path_in(layer.annotations) == wanted), None)
    return None if found is None else _blob(session, _checked(reference, found))


def file_name(url: str) -> str:
    """What a file fetched from a name in a registry is called: the end of its repository. Raises FetchError."""
    return parse_reference(url).repository.rpartition("/")[2] + SUFFIX


def _blob(session: RegistrySession, layer: _Descriptor) -> HttpSource:
    """The file of a layer. Raises ArtifactError for another one than the manifest names."""
    url = session.reference.url("blobs", layer.digest)
    try:
        source = HttpSource(url, PATIENT, authorize=session.authorize)
    except WithoutRanges as whole:
        whole.connection.close()
        raise FetchError(f"{whole.address}: the registry gives no parts of a file, which is how it is read") from None
    try:
        if source.size_bytes != layer.size:
            raise ArtifactError(
                f"{source}: the registry has {source.size_bytes} bytes, its manifest says {layer.size}; push it again"
            )
        if (header := layer.annotations.get(HEADER_SHA256)) is not None:
            start = bytearray(min(PRELUDE_DIGEST.stop, layer.size))
            source.read_into(0, memoryview(start))
            if start[PRELUDE_DIGEST].hex() != header:
                raise ArtifactError(f"{source}: another artifact than the manifest names: its header is another")
        elif session.reference.version.startswith("sha256:"):
            _require_digest(source, layer)
    except BaseException:
        source.close()
        raise
    return source


def _require_digest(source: HttpSource, layer: _Descriptor) -> None:
    """Read all of a file whose manifest, of another tool, does not say which header it has. Raises ArtifactError unless
    it is of the digest; the source has kept the start of it, which holds for what is read later."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(min(PIECE_BYTES, layer.size)))
    for offset in range(0, layer.size, PIECE_BYTES):
        part = piece[: min(PIECE_BYTES, layer.size - offset)]
        source.read_into(offset, part)
        digest.update(part)
    if f"sha256:{digest.hexdigest()}" != layer.digest:
        raise ArtifactError(f"{source}: another file than the manifest names: its SHA-256 is {digest.hexdigest()}")


def _artifact(reference: Reference, layers: tuple[_Descriptor, ...]) -> _Descriptor:
    """The layer that is an artifact. Raises ArtifactError."""
    found = [layer for layer in layers if path_in(layer.annotations).endswith(SUFFIX)]
    if len(found) != 1:
        raise ArtifactError(
            f"{reference.url('manifests', reference.version)}: its manifest has {len(found)} files *{SUFFIX}, "
            "expected one, as `pyc push` and `pyc bundle --format oci` make it"
        )
    return _checked(reference, found[0])


def _checked(reference: Reference, layer: _Descriptor) -> _Descriptor:
    _require_sha256(reference, layer, f"the digest of {SUFFIX}")
    return layer


def _require_sha256(reference: Reference, named: _Descriptor, what: str) -> None:
    """Raise ArtifactError for a digest that nothing here compares: what it names might be replaced."""
    if not DIGEST.fullmatch(named.digest):
        where = reference.url("manifests", reference.version)
        raise ArtifactError(f"{where}: {what} is {named.digest[:80]!a}, expected sha256: and 64 hexadecimal digits")


def _layers(session: RegistrySession) -> tuple[_Descriptor, ...]:
    """The files of the manifest that is asked for, or of the first one that an index names."""
    manifest = _manifest(session, session.reference.version)
    if not manifest.layers and manifest.manifests:
        _require_sha256(session.reference, manifest.manifests[0], "the digest of the manifest that its index names")
        manifest = _manifest(session, manifest.manifests[0].digest)
    return manifest.layers


def _manifest(session: RegistrySession, version: str) -> _Manifest:
    url = session.reference.url("manifests", version)
    data = session.document(url, ", ".join(MANIFEST_TYPES))
    if version.startswith("sha256:") and hashlib.sha256(data).hexdigest() != version[7:]:
        raise ArtifactError(f"{url}: its SHA-256 is not the one it was asked for by")
    try:
        return msgspec.json.decode(data, type=_Manifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{url}: no manifest of OCI: {str(error)[:200]}") from error


def path_in(annotations: Mapping[str, str]) -> str:
    """The path of a layer's file, as its annotations tell it; "" where they do not."""
    return annotations.get(FILE_PATH) or annotations.get(TITLE) or ""
