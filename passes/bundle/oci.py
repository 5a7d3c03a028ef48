"""A bundle as an OCI image layout, as the ModelPack specification has it: a manifest, its config, a layer a file.

    oci-layout  index.json  blobs/sha256/<digest> ...

Layers are files as they are ("raw"), named by an annotation, so a registry stores the artifact once however often its
start script changes, and whoever wants a part of a layer asks for that range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyc.passes.bundle.files import BundleFile
from pyc.runtime.artifact.format import Header
from pyc.runtime.sources.registry import FILE_PATH, HEADER_SHA256, MANIFEST, PRELUDE_DIGEST, TITLE
from pyc.runtime.text.json_text import json_text

INDEX = "application/vnd.oci.image.index.v1+json"
MODEL = "application/vnd.cncf.model.manifest.v1+json"
CONFIG = "application/vnd.cncf.model.config.v1+json"
_LAYER = "application/vnd.cncf.model.{}.v1.raw"
REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class Layout:
    """What a registry is given beside the files: the config and the manifest, as JSON. `sizes` are of the files, in
    bytes."""

    config: bytes
    manifest: bytes
    sizes: tuple[int, ...]


def layout_of(files: Sequence[tuple[str, BundleFile]], header: Header) -> Layout:
    """Describe files, each with its SHA-256 in hexadecimal digits."""
    sizes = tuple(file.size_bytes for _, file in files)
    layers = [
        _descriptor(_LAYER.format(_kind(file)), (digest, size), annotations=_annotations(file))
        for (digest, file), size in zip(files, sizes, strict=True)
    ]
    config = _json(_config(header, [str(layer["digest"]) for layer in layers]))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": MODEL,
        "config": _descriptor(CONFIG, sized(config)),
        "layers": layers,
    }
    return Layout(config, _json(manifest), sizes)


def write_layout(folder: Path, files: Sequence[BundleFile], header: Header, tag: str) -> None:
    """Write the layout into an empty folder. Raises OSError."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    written = []
    for file in files:
        part = blobs / "part"
        with open(part, "wb") as target:
            digest = file.write(target)
        part.rename(blobs / digest)
        written.append((digest, file))
    layout = layout_of(written, header)
    for document in (layout.config, layout.manifest):
        (blobs / sized(document)[0]).write_bytes(document)
    entry = _descriptor(MANIFEST, sized(layout.manifest), annotations={REFERENCE: tag}, artifactType=MODEL)
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def _annotations(file: BundleFile) -> dict[str, str]:
    """Return a file's name, and of an artifact what tells it from others before all of it is there."""
    found = {FILE_PATH: file.name, TITLE: file.name}
    if _kind(file) == "weight":
        found[HEADER_SHA256] = file.start(PRELUDE_DIGEST.stop)[PRELUDE_DIGEST].hex()
    return found


def _kind(file: BundleFile) -> str:
    """What ModelPack calls a file of a model."""
    if file.name.endswith(".pyca"):
        return "weight"
    if file.name in ("README.md", "sbom.cdx.json") or file.name.startswith("licences/"):
        return "doc"
    return "weight.config" if file.name.endswith((".sig", ".toml")) else "code"


def _config(header: Header, digests: list[str]) -> dict[str, object]:
    model = header.model
    outputs = ["text"] if model.kind == "decoder" else ["embedding"]
    return {
        "descriptor": {"family": model.architecture, "licenses": []},
        "config": {
            "architecture": "transformer",
            "format": "pyca",
            "capabilities": {"inputTypes": ["text"], "outputTypes": outputs},
        },
        "modelfs": {"type": "layers", "diffIds": digests},
    }


def sized(document: bytes) -> tuple[str, int]:
    """Its SHA-256 in hexadecimal digits, and its size in bytes."""
    return hashlib.sha256(document).hexdigest(), len(document)


def _descriptor(media_type: str, content: tuple[str, int], **more: object) -> dict[str, object]:
    digest, size_bytes = content
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size_bytes, **more}


def _json(document: object) -> bytes:
    return json_text(document, indent=2, sort_keys=True).encode() + b"\n"
