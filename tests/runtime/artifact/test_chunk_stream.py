"""runtime/artifact/chunk_stream.py: tensors through a few buffers, verified, in order."""

import time

import pytest
from remote_artifacts import write_artifact

from pyc.runtime.artifact.chunk_stream import LEAST_BUFFERS, stream_tensors
from pyc.runtime.artifact.format import MAX_CHUNK_BYTES
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError


def buffers(count):
    return [memoryview(bytearray(MAX_CHUNK_BYTES)) for _ in range(count)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("count", [LEAST_BUFFERS, 5])
def test_every_byte_comes_once_and_in_order(codec, count, tmp_path, monkeypatch):
    """A slow user still finds its part, and that before it, as they were."""
    write_artifact(tmp_path / "a.pyca", codec=codec)
    with open_artifact(tmp_path / "a.pyca") as artifact:
        names = [tensor.name for tensor in artifact.header.tensors]
        wanted = {name: array.tobytes() for name, array in artifact.tensors(names).items()}
        found, places, before = {name: bytearray() for name in names}, buffers(count), None
        for part in stream_tensors(artifact, names, places):
            time.sleep(0.002)
            content = bytes(places[part.buffer][: part.size_bytes])
            assert part.offset == len(found[part.tensor.name])
            found[part.tensor.name] += content
            if before is not None:
                assert bytes(places[before[0]][: len(before[1])]) == before[1]
            before = part.buffer, content
        assert {name: bytes(content) for name, content in found.items()} == wanted


def test_a_chunk_that_was_altered_is_an_error_and_none_behind_it_comes(tmp_path):
    path = tmp_path / "a.pyca"
    data = bytearray(write_artifact(path, codec="none"))
    with open_artifact(path) as artifact:
        names = [tensor.name for tensor in artifact.header.tensors]
        data[data.rindex(artifact.tensor(names[-1]).tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with open_artifact(path) as artifact:
        parts = stream_tensors(artifact, [*names, names[0]], buffers(3))
        found = [next(parts).tensor.name for _ in range(sum(t.span.chunk_count for t in artifact.header.tensors[:-1]))]
        assert found[-1] == names[-2]
        with pytest.raises(ArtifactError, match="altered"):
            next(parts)
        assert next(parts, None) is None
