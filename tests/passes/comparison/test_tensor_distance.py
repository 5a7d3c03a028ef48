"""passes/comparison/tensor_distance.py: tensors that anybody may have written, in bounded pieces, without a warning."""

import math
import warnings

import numpy as np
import pytest

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.passes.comparison import tensor_distance as distance
from pyc.passes.comparison.compare_artifacts import compare_artifacts
from pyc.runtime.artifact.format import Generation, ModelInfo, Pooling, Provenance
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.tensor_rows import TensorRows

MODEL = ModelInfo("bert", "encoder", 32, 8, 64, 2, None, Pooling("mean", True))
CODES = {"f32": np.float32, "f16": np.float16, "i32": np.int32}


@pytest.fixture
def compared(tmp_path):
    """`compared(before, after)`: distances between two artifacts' tensors, given as arrays by name."""

    def written(path, tensors):
        with ArtifactWriter(path, chunk_bytes=64 << 10) as writer:
            for name, array in tensors.items():
                dtype = next(name for name, code in CODES.items() if array.dtype == code)
                writer.add_tensor(name, dtype, array.shape, [array.tobytes()])
            writer.finish(model=MODEL, generation=Generation(), provenance=Provenance("{}", (), (), ()))
        return path

    def compare(before, after):
        one, two = written(tmp_path / "one.pyca", before), written(tmp_path / "two.pyca", after)
        with open_artifact(one, mode="pread") as first, open_artifact(two, mode="pread") as second:
            found = compare_artifacts(first, second).tensors
        return {each.name: each.why_no_distance or each.distance for each in found}

    return compare


def test_large_tensors_are_read_in_pieces(compared, monkeypatch):
    """Of 2 million numbers each, by 4096: nothing is ever read whole, and the sums are those of all."""
    monkeypatch.setattr(distance, "NUMBERS_AT_A_TIME", 4096)
    monkeypatch.delattr(Artifact, "tensor")
    monkeypatch.delattr(Artifact, "tensors")
    largest, rows = 0, TensorRows.__getitem__

    def noted(self, piece):
        nonlocal largest
        found = rows(self, piece)
        largest = max(largest, found.size)
        return found

    monkeypatch.setattr(TensorRows, "__getitem__", noted)
    noise = np.random.default_rng(3)
    before = {
        "matrix": noise.standard_normal((2048, 100), np.float32),
        "vector": noise.standard_normal(200_001, np.float32).astype(np.float16),
        "cube": np.ones((20, 100, 30), np.float32),
    }
    after = {name: (array * array.dtype.type(1.25)).astype(array.dtype) for name, array in before.items()}
    found = compared(before, after)
    for name, array in before.items():
        a, b = array.astype(np.float64), after[name].astype(np.float64)
        assert found[name] == pytest.approx(math.sqrt(np.square(b - a).sum() / np.square(a).sum()), rel=1e-12)
    assert largest == 4096 and len(found) == 3


def test_numbers_that_are_none(compared):
    """They come to a distance that is none either, and nobody is warned."""
    bad = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1], np.float32)
    before = {"vector": bad, "matrix": np.tile(bad, (32, 4)), "zeros": np.zeros(5, np.float32)}
    after = {"vector": -bad[::-1], "matrix": np.tile(-bad, (32, 4)), "zeros": np.ones(5, np.float32)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compared(before, after)
    assert math.isnan(found["vector"]) and math.isnan(found["matrix"]) and found["zeros"] == math.inf


def test_rows_of_which_few_fill_the_memory(compared, monkeypatch):
    monkeypatch.setattr(distance, "MOST_COLUMNS", 64)
    ones = {"wide": np.ones((2, 65), np.float32), "narrow": np.ones((2, 64), np.float32)}
    assert compared(ones, {name: 2 * array for name, array in ones.items()}) == {"wide": "rows too long", "narrow": 1.0}
