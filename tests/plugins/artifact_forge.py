"""Makes artifacts by hand, right and wrong, after docs/artifact-format.md, without the writer."""

import hashlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import lz4.block
import zstandard

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.errors import ArtifactError

PAGE = 4096
MAGIC = b"\x93PYCA\r\n\x1a"

Document = dict[str, Any]
Mutation = Callable[[Document, bytearray], object]


def stored_chunk(raw: bytes, codec: str) -> bytes:
    if codec == "zstd":
        return zstandard.ZstdCompressor().compress(raw)
    return lz4.block.compress(raw, store_size=False) if codec == "lz4" else raw


def add_chunk(document: Document, payload: bytearray, raw: bytes, codec: str = "none") -> None:
    """Appends a chunk to the payload and lists it."""
    stored = stored_chunk(raw, codec)
    payload += bytes(-len(payload) % PAGE)
    document["chunks"].append(
        {
            "offset": len(payload),
            "stored_bytes": len(stored),
            "raw_bytes": len(raw),
            "codec": codec,
            "blake3": blake3.blake3(stored).hexdigest(),
        }
    )
    payload += stored


def make() -> tuple[Document, bytearray]:
    """A small valid artifact: two tensors and two blobs, all codecs."""
    document: Document = {
        "format": "pyca",
        "requires": [],
        "model": {
            "architecture": "llama",
            "kind": "decoder",
            "vocab_size": 32,
            "hidden_size": 8,
            "context": 64,
            "max_sequences": 2,
            "kv_cache": {"layers": 1, "heads": 1, "head_dim": 8, "block_tokens": 16, "dtype": "f32"},
            "pooling": None,
        },
        "tensors": [
            {"name": "a", "dtype": "f32", "shape": [40, 32], "span": {"first_chunk": 0, "chunk_count": 2}},
            {"name": "b", "dtype": "i8", "shape": [100], "span": {"first_chunk": 2, "chunk_count": 1}},
        ],
        "blobs": [
            {"name": "lib", "raw_bytes": 3000, "span": {"first_chunk": 3, "chunk_count": 1}},
            {"name": "t.json", "raw_bytes": 6000, "span": {"first_chunk": 4, "chunk_count": 2}},
        ],
        "programs": [
            {
                "backend": "cpu",
                "device": "cpu",
                "arch": "x86_64",
                "system": "linux",
                "isa": "x86-64-v3",
                "features": ["avx2"],
                "library": "lib",
                "abi": [{"name": "tvm_ffi", "version": "0.1.15"}],
                "functions": [
                    {
                        "name": "forward",
                        "tokens": 1,
                        "symbol": "f1",
                        "inputs": ["token_ids"],
                        "weights": ["a"],
                    },
                    {
                        "name": "forward",
                        "tokens": 16,
                        "symbol": "f16",
                        "inputs": ["token_ids"],
                        "weights": ["a"],
                    },
                ],
            }
        ],
        "chunks": [],
        "generation": {
            "eos_token_ids": [2],
            "bos_token_id": 1,
            "pad_token_id": None,
            "temperature": "0.7",
            "top_k": 40,
            "top_p": "0.9",
            "min_p": None,
            "repetition_penalty": None,
            "do_sample": True,
        },
        "provenance": {
            "recipe": "{}",
            "sources": [{"name": "model.safetensors", "size_bytes": 7, "blake3": "0" * 64}],
            "tools": [{"name": "pyc", "version": "0"}],
            "passes": [{"name": "fuse", "version": 1, "options": "{}"}],
        },
    }
    payload = bytearray()
    noise = random.Random(0).randbytes(5120)
    add_chunk(document, payload, noise[:PAGE])
    add_chunk(document, payload, noise[PAGE:])
    add_chunk(document, payload, noise[:100])
    add_chunk(document, payload, b"\x7fELF" * 750, "lz4")
    add_chunk(document, payload, b'{"a":1} ' * 512, "zstd")
    add_chunk(document, payload, b'{"b":2} ' * 238, "zstd")
    return document, payload


def canonical(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def join(
    header: bytes, payload: bytes, *, required: int = 3, record: bytes = bytes(96), **fields: int | bytes
) -> bytes:
    """The file around a header and a payload. `fields` replaces parts of the prelude."""
    prelude: dict[str, int | bytes] = {
        "magic": MAGIC,
        "major": 1,
        "minor": 1,
        "reserved": 0,
        "required": required,
        "size": len(header),
        "digest": hashlib.sha256(header).digest(),
    }
    front = struct.pack("<8sHHIQQ32s", *(prelude | fields).values()) + record + header
    return front + bytes(-len(front) % PAGE) + payload if payload else front


def put(path: Path, data: bytes) -> None:
    """Writes a new file: ext4 flushes one that is truncated and written again, which takes far longer."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def check(path: Path, mode: str = "mmap") -> None:
    """Everything a reader may ask of a file."""
    with open_artifact(path, mode="mmap" if mode == "mmap" else "pread") as artifact:
        artifact.verify_all()
        artifact.tensors()
        for blob in artifact.header.blobs:
            artifact.blob(blob.name)


def signed_file(path: Path, home: Path) -> bytes:
    """The small artifact with one tensor and one blob, signed; its header fits one page."""
    document, _ = make()
    payload = bytearray()
    document |= {
        "chunks": [],
        "programs": [],
        "tensors": document["tensors"][:1],
        "blobs": document["blobs"][1:],
    }
    document["blobs"][0]["span"] = {"first_chunk": 2, "chunk_count": 2}
    document["provenance"]["sources"] = []
    noise = random.Random(1).randbytes(5120)
    add_chunk(document, payload, noise[:PAGE])
    add_chunk(document, payload, noise[PAGE:])
    add_chunk(document, payload, b'{"a":1} ' * 512, "zstd")
    add_chunk(document, payload, b'{"b":2} ' * 238, "zstd")
    header = canonical(document)
    prelude = join(header, b"", required=2)[:64]
    record = signing_key(home=home).sign(prelude).pack()
    data = join(header, payload, required=2, record=record)
    put(path, data)
    return data


def restore_chunk(index: int, stored: bytes, raw_bytes: int) -> Mutation:
    """Replaces the last chunk's stored bytes, digest included."""

    def mutate(document: Document, payload: bytearray) -> None:
        assert index == len(document["chunks"]) - 1
        del payload[document["chunks"][index]["offset"] :]
        payload.extend(stored)
        document["chunks"][index] |= {
            "stored_bytes": len(stored),
            "raw_bytes": raw_bytes,
            "blake3": blake3.blake3(stored).hexdigest(),
        }

    return mutate


def refused(path: Path, mode: str = "mmap") -> bool:
    try:
        check(path, mode)
    except ArtifactError:
        return True
    return False


def forge(
    path: Path, target: Path, change: Callable[[Document], object], home: Path | None = None, minor: int = 1
) -> Document:
    """Writes to `target` the artifact at `path` with another header, signed by the default key; returns that header."""
    data = path.read_bytes()
    required, size = struct.unpack_from("<QQ", data, 16)
    document: Document = json.loads(data[160 : 160 + size])
    change(document)
    payload = data[-(-(160 + size) // PAGE) * PAGE :]
    header = canonical(document)
    prelude = join(header, b"", required=required, minor=minor)[:64]
    record = signing_key(home=home).sign(prelude).pack()
    put(target, join(header, payload, required=required, record=record, minor=minor))
    return document
