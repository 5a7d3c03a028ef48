"""compiler/storage.py: what every backend stores alike, whatever the size of the pieces."""

import numpy as np
import pytest
from weight_files import source

from pyc.compiler import storage
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.schemes import Dense, Int8Channel
from pyc.compiler.storage import pieces, stored_tensor
from pyc.compiler.weights import Packed, ScaledRows, Stored

__all__ = ["source"]


def stored_bytes(expression):
    with SourceFiles() as files:
        return b"".join(bytes(task()) for task in pieces(expression, files))


def test_vectors_are_stored_as_f32(source, monkeypatch):
    values, factors = np.linspace(-1, 1, 10), np.arange(10)
    expression = Stored(ScaledRows(source(values), source(factors)), Dense("f32"))
    tensor = stored_tensor(expression)
    assert (tensor.dtype, tensor.shape, tensor.columns) == ("f32", (10,), 1)
    wanted = (values.astype(np.float32) * factors.astype(np.float32)).tobytes()
    assert stored_bytes(expression) == wanted
    monkeypatch.setattr(storage, "PIECE_WEIGHTS", 3)
    assert len(list(pieces(expression, SourceFiles()))) == 4
    assert stored_bytes(expression) == wanted


def test_what_a_backend_packs_is_the_backends(source):
    packed = Packed(Stored(source(np.ones((2, 32))), Int8Channel()), "some layout")
    with pytest.raises(AssertionError, match="the layout 'some layout' is a backend's"):
        stored_tensor(packed)
