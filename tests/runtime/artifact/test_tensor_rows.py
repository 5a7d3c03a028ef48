"""runtime/artifact/tensor_rows.py: rows are those of the tensor, verified; in order each chunk is decoded once."""

import random

import numpy as np
import pytest

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.runtime.artifact.format import Generation, ModelInfo, Pooling, Provenance
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.tensor_rows import TensorRows
from pyc.runtime.errors import ArtifactError

MODEL = ModelInfo("bert", "encoder", 32, 8, 64, 2, None, Pooling("mean", True))
SHAPES = {"matrix": ("f32", (700, 60)), "bytes": ("u8", (50, 4096)), "vector": ("i32", (9999,)), "short": ("f16", (3,))}


@pytest.fixture(params=["none", "zstd"])
def artifact(request, tmp_path):
    noise = random.Random(5)
    path = tmp_path / "model.pyca"
    with ArtifactWriter(path, request.param, chunk_bytes=16 << 10) as writer:
        for name, (dtype, shape) in SHAPES.items():
            size = int(np.prod(shape)) * {"f32": 4, "i32": 4, "f16": 2, "u8": 1}[dtype]
            writer.add_tensor(name, dtype, shape, [noise.randbytes(size // 2) + bytes(size - size // 2)])
        writer.finish(model=MODEL, generation=Generation(), provenance=Provenance("{}", (), (), ()))
    with open_artifact(path, mode="pread") as opened:
        yield opened


def tensor_of(artifact, name):
    return next(tensor for tensor in artifact.header.tensors if tensor.name == name)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("is_flat", [False, True])
def test_rows_are_those_of_the_tensor(artifact, name, is_flat):
    whole = artifact.tensor(name)
    whole = whole.reshape(-1) if is_flat else whole
    rows = TensorRows(artifact, tensor_of(artifact, name), is_flat=is_flat)
    assert (rows.shape, rows.dtype) == (whole.shape, whole.dtype)
    count, draw = len(whole), random.Random(6)
    ranges = [(0, count), (0, 1), (count - 1, count), (count, count), (0, 10 * count), (count, 0)]
    ranges += [tuple(sorted(draw.choices(range(count + 1), k=2))) for _ in range(40)]
    for start, stop in ranges:
        assert rows[start:stop].tobytes() == whole[start:stop].tobytes(), (start, stop)


@pytest.mark.parametrize("step", [1, 7, 64, 100, 700])
def test_each_chunk_is_read_once_in_order(artifact, step, monkeypatch):
    numbers, read = [], Artifact.read_chunks

    def noted(self, wanted):
        numbers.extend(each.number for each in wanted)
        read(self, wanted)

    monkeypatch.setattr(Artifact, "read_chunks", noted)
    tensor = tensor_of(artifact, "matrix")
    rows = TensorRows(artifact, tensor)
    assert b"".join(rows[n : n + step].tobytes() for n in range(0, 700, step)) == artifact.tensor("matrix").tobytes()
    first = tensor.span.first_chunk
    assert numbers == list(range(first, first + tensor.span.chunk_count)) and len(numbers) > 5


def test_altered_bytes_are_never_handed_out(artifact):
    """Also not by asking again."""
    tensor = tensor_of(artifact, "matrix")
    chunk = artifact.header.chunks[tensor.span.first_chunk + 1]
    with open(artifact.path, "r+b") as file:
        file.seek(len(artifact.front()) + chunk.offset)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    rows = TensorRows(artifact, tensor)
    for _ in range(2):
        with pytest.raises(ArtifactError, match="altered: its BLAKE3 digest is not the header's"):
            rows[70:72]
