"""An artifact of a few megabytes to be served, and a reader that does not wait long."""

import random
from pathlib import Path

import pytest

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.runtime.artifact import chunk_fetcher
from pyc.runtime.artifact.format import Generation, ModelInfo, Pooling, Provenance
from pyc.runtime.sources import http
from pyc.runtime.sources.protocol import Retries

MODEL = ModelInfo("bert", "encoder", 32, 8, 64, 2, None, Pooling("mean", True))
QUICK = Retries(first_wait_s=0.001, most_wait_s=0.004, connect_s=2.0, stall_s=0.25, least_bytes=64)


START_BYTES = 8192
PIECE_BYTES = 64 << 10


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of other machines come in pieces of PIECE_BYTES behind START_BYTES, from no cache and without waits."""
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    monkeypatch.setattr(http, "PATIENT", QUICK)
    monkeypatch.setattr(http, "START_BYTES", START_BYTES)
    for name in ("LEAST_PIECE_BYTES", "MOST_PIECE_BYTES"):
        monkeypatch.setattr(chunk_fetcher, name, PIECE_BYTES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty: what a pull puts there is all that is in it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def write_artifact(path: Path, *, seed: int = 0, tensors: int = 6, size: int = 300_000, codec: str = "auto") -> bytes:
    """Write an artifact with noise in it and return its bytes."""
    noise = random.Random(seed)
    with ArtifactWriter(path, codec, chunk_bytes=128 << 10) as writer:
        writer.add_blob("tokenizer.json", b'{"words": []}' * 400)
        for number in range(tensors):
            count = size if number % 2 else size // 50
            writer.add_tensor(f"t{number}", "u8", (count,), [noise.randbytes(count)])
        writer.add_blob("lib", noise.randbytes(5000))
        writer.finish(model=MODEL, generation=Generation(), provenance=Provenance("{}", (), (), ()))
    return path.read_bytes()
