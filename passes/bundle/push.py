"""An artifact, or a bundle as an OCI image layout, into a registry: `pyc pull` and `pyc run` take it from there.

Of an artifact the manifest names the file and, where it lies beside it, its `.sig`; the same files give the same
manifest, and so the same digest. A layout goes as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from pyc.passes.bundle.files import BundleFile
from pyc.passes.bundle.oci import REFERENCE, layout_of, sized
from pyc.passes.bundle.upload import Blob, Uploader
from pyc.runtime.artifact.format import MAGIC
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.trust.decision import Packed
from pyc.runtime.artifact.trust.keys import read_small_text
from pyc.runtime.artifact.trust.signature_file import read_signatures, signature_file, signatures_text
from pyc.runtime.errors import ArtifactError, FetchError
from pyc.runtime.host.home import open_regular
from pyc.runtime.sources.protocol import PATIENT
from pyc.runtime.sources.registry import MANIFEST, SUFFIX, path_in
from pyc.runtime.sources.registry_session import DIGEST, Reference, parse_reference

NAME = "model.pyca"
MOST_DOCUMENT_BYTES = 4 << 20
_Kind = TypeVar("_Kind", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a tag means now: `digest` of its manifest, `former` that it had before, or "". Sizes are of the blobs."""

    digest: str
    former: str
    size_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be sent: the manifest, and all that it names. `artifacts` are those of a layout, each whole: whether
    they are trusted is the caller's matter."""

    manifest: bytes
    blobs: tuple[Blob, ...]
    artifacts: tuple[Packed, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all blobs."""
        return sum(blob.size_bytes for blob in self.blobs)


def push(load: Load, url: str, advance: Callable[[int], None]) -> Pushed:
    """Send what the registry lacks, and have the tag of `url` mean it then. `advance` is told of bytes that are there.

    Raises FetchError, and ArtifactError for files that change meanwhile; the tag is then as it was.
    """
    reference = pushable(url)
    uploader = Uploader(reference, advance, PATIENT)
    digest = f"sha256:{sized(load.manifest)[0]}"
    former = uploader.current()
    for blob in load.blobs:
        uploader.give(blob)
    uploader.name(load.manifest, digest)
    return Pushed(digest, former, load.size_bytes, uploader.sent_bytes)


def pushable(url: str) -> Reference:
    """Read `oci://host/repository:tag`. Raises FetchError, also for a digest, which nobody may choose."""
    reference = parse_reference(url)
    if reference.version.startswith("sha256:"):
        raise FetchError(f"{url}: names a digest, expected a tag: oci://host/repository:tag")
    return reference


def load_of_artifact(path: Path, opened: Artifact) -> Load:
    """What is sent of an artifact, whose bytes are verified here; those that are sent later have the same digest.

    Raises ArtifactError.
    """
    name = path.name if path.name.endswith(SUFFIX) else NAME
    hashed = [(BundleFile(name, opened).sha256(), BundleFile(name, path))]
    if records := read_signatures(path):
        beside = BundleFile(signature_file(Path(name)).name, signatures_text(records).encode())
        hashed.append((beside.sha256(), beside))
    layout = layout_of(hashed, opened.header)
    blobs = [Blob(f"sha256:{digest}", size, file) for (digest, file), size in zip(hashed, layout.sizes, strict=True)]
    digest, size = sized(layout.config)
    config = Blob(f"sha256:{digest}", size, BundleFile("its config", layout.config))
    return Load(layout.manifest, (config, *blobs))


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str
    size: int
    annotations: dict[str, str] = {}
    media_type: str = msgspec.field(name="mediaType", default=MANIFEST)


class _Manifest(msgspec.Struct, frozen=True):
    config: _Descriptor
    layers: tuple[_Descriptor, ...]


class _Index(msgspec.Struct, frozen=True):
    manifests: tuple[_Descriptor, ...]


def load_of_layout(folder: Path, tag: str = "") -> Load:
    """What is sent of an OCI image layout: the manifest that is called `tag` in it, or its only one, and all that it
    names. Raises ArtifactError for a layout, or an artifact in it, that is not whole.

    An artifact is what is called one, or begins as one. What archives among the layers hold is not looked at: pyc runs
    none of it out of a registry.
    """
    index = _document(folder / "index.json", _Index)[1]
    found = [each for each in index.manifests if each.annotations.get(REFERENCE) == tag] or list(index.manifests)
    if len(found) != 1:
        names = ", ".join(sorted(each.annotations.get(REFERENCE, "?")[:60] for each in found)[:8])
        raise ArtifactError(
            f"{folder}: has {len(found)} manifests ({names}), expected one, or one called "
            f"{tag}; push it under the tag that it has here, or write a layout of that one (pyc bundle --tag {tag})"
        )
    text, manifest = _document(_blob_file(folder, found[0]), _Manifest, found[0].digest)
    blobs, artifacts = [], []
    for descriptor in (manifest.config, *manifest.layers):
        path = _blob_file(folder, descriptor)
        blob = BundleFile(path_in(descriptor.annotations) or path.name, path)
        is_artifact = _start(path) == MAGIC or blob.name.endswith(SUFFIX)
        try:
            digest, packed = _verified(folder, blob, path, manifest) if is_artifact else (blob.sha256(), None)
            is_whole = f"sha256:{digest}" == descriptor.digest and blob.size_bytes == descriptor.size
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
        if not is_whole:
            raise ArtifactError(f"{path}: has been altered ({blob.name}): its SHA-256 is another; bundle it again")
        blobs.append(Blob(descriptor.digest, descriptor.size, blob))
        artifacts += [packed] if packed is not None else []
    return Load(text, tuple(blobs), tuple(artifacts))


def _start(path: Path) -> bytes:
    """The first bytes of a file, as many as MAGIC has. Raises ArtifactError."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC))
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error


def _verified(folder: Path, blob: BundleFile, path: Path, manifest: _Manifest) -> tuple[str, Packed | None]:
    """The SHA-256 of an artifact in a layout, and what its signers are asked by, None where the digest is not that of
    `path`, so that the layout is at fault. Raises ArtifactError for an artifact that is not whole itself."""
    try:
        with open_artifact(path, mode="pread") as opened:
            digest = BundleFile(blob.name, opened).sha256()
            beside = next((each for each in manifest.layers if path_in(each.annotations) == f"{blob.name}.sig"), None)
            packed = Packed(
                folder / (PurePosixPath(blob.name).name or path.name),
                opened.prelude,
                opened.signature,
                None if beside is None else _blob_file(folder, beside),
            )
            return digest, packed
    except ArtifactError:
        if (digest := blob.sha256()) == path.name:
            raise
        return digest, None


def _blob_file(folder: Path, descriptor: _Descriptor) -> Path:
    if not DIGEST.fullmatch(descriptor.digest):
        raise ArtifactError(f"{folder}: names the digest {descriptor.digest[:80]!a}, expected sha256:...")
    return folder / "blobs" / "sha256" / descriptor.digest.partition(":")[2]


def _document(path: Path, kind: type[_Kind], digest: str = "") -> tuple[bytes, _Kind]:
    data = read_small_text(path, MOST_DOCUMENT_BYTES).encode()
    if digest and f"sha256:{sized(data)[0]}" != digest:
        raise ArtifactError(f"{path}: has been altered (the manifest): its SHA-256 is another; bundle it again")
    try:
        return data, msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: is not of an OCI image layout: {str(error)[:200]}") from error
