"""backends/cpu/storage.py: the packed bytes, whatever the size of the pieces, in memory that the pieces bound."""

import tracemalloc

import numpy as np
import pytest
from weight_files import source

from pyc.backends.cpu.storage import pieces, stored_tensor
from pyc.compiler import storage
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.schemes import SCHEMES, Dense, Int4Group, Int8Channel
from pyc.compiler.weights import Packed, Source, Stacked, Stored

__all__ = ["source"]


def stored_bytes(expression):
    with SourceFiles() as files:
        return b"".join(bytes(task()) for task in pieces(expression, files))


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "none"])
@pytest.mark.parametrize("rows", [1, 16, 50])
def test_pieces_of_any_size_give_the_tensor(source, name, rows, monkeypatch):
    values = np.random.default_rng(0).normal(size=(rows, 128))
    packed = Packed(Stacked((Stored(source(values), SCHEMES[name]),) * 2), "panel16")
    tensor = stored_tensor(packed)
    assert (tensor.rows, tensor.columns, tensor.dtype) == (2 * rows, 128, "u8")
    whole = stored_bytes(packed)
    assert len(whole) == tensor.size_bytes == np.prod(tensor.shape)
    assert len(list(pieces(packed, SourceFiles()))) == 1
    for weights in (5000, 1):
        monkeypatch.setattr(storage, "PIECE_WEIGHTS", weights)
        assert stored_bytes(packed) == whole
    assert len(list(pieces(packed, SourceFiles()))) > 1 or rows == 1


@pytest.mark.parametrize("scheme", [Dense("bf16"), Int8Channel(), Int4Group(32, symmetric=False)])
def test_memory_is_bounded_by_a_piece(tmp_path, scheme, monkeypatch):
    """A tensor of 64 pieces: never more than 12 pieces of f32 at a time, output included."""
    piece_weights, columns = 1 << 16, 256
    monkeypatch.setattr(storage, "PIECE_WEIGHTS", piece_weights)
    path = tmp_path / "w"
    with open(path, "wb") as file:
        file.truncate(64 * piece_weights * 4)
    weight = Source(str(path), "w", "f32", (64 * piece_weights // columns, columns), 0, 64 * piece_weights * 4)
    packed = Packed(Stored(weight, scheme), "panel16")
    with SourceFiles() as files:
        sizes = [len(task()) for task in pieces(packed, files)]  # what numpy allocates once is not measured
        tracemalloc.start()
        try:
            again = sum(len(task()) for task in pieces(packed, files))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert again == sum(sizes)
    assert len(sizes) == 64
    assert 4 * piece_weights < peak < 12 * 4 * piece_weights
