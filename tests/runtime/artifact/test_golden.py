"""tests/golden/v1.*.pyca open forever: with pyc's reader, and with one written here from the document."""

import hashlib
import importlib.util
import json
import struct
from pathlib import Path
from types import ModuleType

import blake3
import lz4.block
import numpy as np
import pytest
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.errors import ArtifactError
from pyc.runtime.sources.protocol import Mode

GOLDEN = Path(__file__).parents[2] / "golden"
SHA256 = {
    "v1.0": "99eb024f2bb0572ce6b62a9c60bbd26a22844b5822a57a264752a18fd660b884",
    "v1.1": "f61585c002140acd4a10d3e21f0507928f1e54d5a82dcad943818a6a3b62bef6",
}


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The script that wrote the file."""
    spec = importlib.util.spec_from_file_location("make_v1", GOLDEN / "make_v1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=SHA256)
def golden(request: pytest.FixtureRequest) -> Path:
    """Each golden artifact."""
    return GOLDEN / f"{request.param}.pyca"


def test_the_file_is_the_one_that_was_written_first(golden: Path) -> None:
    assert hashlib.sha256(golden.read_bytes()).hexdigest() == SHA256[golden.stem]


@pytest.mark.parametrize("mode", ["mmap", "pread"])
def test_it_opens(mode: Mode, made: ModuleType, golden: Path) -> None:
    with open_artifact(golden, mode=mode) as artifact:
        artifact.verify_all()
        for name, (dtype, expected) in made.tensors().items():
            np.testing.assert_array_equal(artifact.tensor(name), expected, err_msg=dtype)
        for name, data in made.blobs().items():
            assert artifact.blob(name) == data
        header = artifact.header
        assert {chunk.codec for chunk in header.chunks} == {"none", "lz4", "zstd"}
        assert header.model.kv_cache is not None
        assert (header.model.architecture, header.model.kv_cache.head_dim) == ("llama", 16)
        assert header.generation.eos_token_ids == (2, 7)
        assert header.programs[0].functions[1].symbol == "forward_16"
        assert header.provenance.passes[0].options == '{"clip":0.95,"note":"é 模型 \\u0007"}'
        assert artifact.signature is not None
        assert PublicKey(artifact.signature.public_key).fingerprint == "f35479c7690268c9"
        with pytest.raises(ArtifactError, match="not trusted here"):
            require_trusted(artifact, home=Path("/nowhere"))


def test_the_script_still_writes_a_file_of_the_same_content(
    made: ModuleType, golden: Path, tmp_path: Path
) -> None:
    """The bytes may differ only in what compression libraries decide."""
    made.write(tmp_path / "again.pyca")
    with open_artifact(golden) as old, open_artifact(tmp_path / "again.pyca") as again:
        for part in ("model", "programs", "generation", "provenance"):
            assert getattr(old.header, part) == getattr(again.header, part)
        for name, array in old.tensors().items():
            np.testing.assert_array_equal(array, again.tensor(name))


def test_a_reader_written_from_the_document_agrees(made: ModuleType, golden: Path) -> None:
    data = golden.read_bytes()
    magic, major, minor, reserved, required, size, digest = struct.unpack("<8sHHIQQ32s", data[:64])
    assert (magic, major, minor, reserved, required) == (b"\x93PYCA\r\n\x1a", 1, int(golden.stem[-1]), 0, 3)
    Ed25519PublicKey.from_public_bytes(data[64:96]).verify(data[96:160], b"pyc artifact signature v1\0" + data[:64])
    text = data[160 : 160 + size]
    assert hashlib.sha256(text).digest() == digest
    header = json.loads(text)
    assert json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == text
    payload = -(-(160 + size) // 4096) * 4096
    assert not any(data[160 + size : payload])

    raw, position = [], 0
    for chunk in header["chunks"]:
        assert chunk["offset"] == -(-position // 4096) * 4096
        assert not any(data[payload + position : payload + chunk["offset"]])
        position = chunk["offset"] + chunk["stored_bytes"]
        stored = data[payload + chunk["offset"] : payload + position]
        assert blake3.blake3(stored).hexdigest() == chunk["blake3"]
        if chunk["codec"] == "lz4":
            stored = lz4.block.decompress(stored, uncompressed_size=chunk["raw_bytes"])
        elif chunk["codec"] == "zstd":
            stored = zstandard.ZstdDecompressor().decompress(stored)
        assert len(stored) == chunk["raw_bytes"]
        raw.append(stored)
    assert payload + position == len(data)

    def content(record: dict) -> bytes:
        first = record["span"]["first_chunk"]
        return b"".join(raw[first : first + record["span"]["chunk_count"]])

    tensors = {record["name"]: record for record in header["tensors"]}
    assert {name: content(record) for name, record in tensors.items()} == {
        name: array.tobytes() for name, (_, array) in made.tensors().items()
    }
    assert {name: (record["dtype"], tuple(record["shape"])) for name, record in tensors.items()} == {
        name: (dtype, array.shape) for name, (dtype, array) in made.tensors().items()
    }
    assert {record["name"]: content(record) for record in header["blobs"]} == made.blobs()
