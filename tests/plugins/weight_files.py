"""Sources of weight expressions out of arrays, written as bare bytes."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pyc.compiler.weights import Source

NUMPY_DTYPES = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": ml_dtypes.bfloat16}
HEAD = 24  # bytes before the tensor, so that an offset that is ignored shows


def write_source(path: Path, values: np.ndarray, dtype: str = "f32") -> Source:
    """`values` rounded to `dtype` in a file of their own; the tensor is called as the file."""
    data = np.asarray(values).astype(NUMPY_DTYPES[dtype]).tobytes()
    path.write_bytes(b"\xff" * HEAD + data + b"\xff" * 8)
    return Source(str(path), path.name, dtype, tuple(np.shape(values)), HEAD, len(data))


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Source]:
    """`source(values, dtype="f32")`: a Source that holds them."""
    made: list[Path] = []

    def make(values: np.ndarray, dtype: str = "f32") -> Source:
        made.append(tmp_path / f"source{len(made)}")
        return write_source(made[-1], values, dtype)

    return make
