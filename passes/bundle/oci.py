"""A bundle as an OCI image layout, as the ModelPack specification has it: a manifest, its config, a layer a file.

    oci-layout  index.json  blobs/sha256/<digest> ...

Layers are files as they are ("raw"), named by an annotation, so a registry stores the artifact once however often its
start script changes, and whoever wants a part of a layer asks for that range.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pyc.passes.bundle.files import BundleFile
from pyc.runtime.artifact.format import Header

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
MODEL = "application/vnd.cncf.model.manifest.v1+json"
CONFIG = "application/vnd.cncf.model.config.v1+json"
_LAYER = "application/vnd.cncf.model.{}.v1.raw"
_FILE_PATH = "org.cncf.model.filepath"
_REFERENCE = "org.opencontainers.image.ref.name"
_TITLE = "org.opencontainers.image.title"


def write_layout(folder: Path, files: Sequence[BundleFile], header: Header, tag: str) -> None:
    """Write the layout into an empty folder. Raises OSError."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers = []
    for file in files:
        part = blobs / "part"
        with open(part, "wb") as target:
            digest = file.write(target)
        part.rename(blobs / digest)
        annotations = {_FILE_PATH: file.name, _TITLE: file.name}
        layers.append(_descriptor(_LAYER.format(_kind(file)), digest, file.size_bytes, annotations=annotations))
    config = _store(blobs, _config(header, [str(layer["digest"]) for layer in layers]))
    manifest = _store(
        blobs,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": MODEL,
            "config": _descriptor(CONFIG, *config),
            "layers": layers,
        },
    )
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [_descriptor(MANIFEST, *manifest, annotations={_REFERENCE: tag}, artifactType=MODEL)],
    }
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


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


def _store(blobs: Path, document: object) -> tuple[str, int]:
    data = _json(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return digest, len(data)


def _descriptor(media_type: str, digest: str, size: int, **more: object) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size, **more}


def _json(document: object) -> bytes:
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"
