"""What a weight expression looks like in the artifact: dtype, shape and the pieces it is computed in.

Here are the weights that every backend stores alike: vectors and tables of f32. A backend stores what it has packed
(`weights.Packed`) in its own way, and leaves the rest to these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from pyc.compiler.evaluate import evaluate_stored, stored_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.schemes import Dense, Scheme
from pyc.compiler.weights import Expression, Packed
from pyc.runtime.artifact.dtypes import DTYPES, DtypeName

PIECE_WEIGHTS = 1 << 21
"""Weights evaluated at once: 8 MiB of f32, times a few temporaries, is what a worker holds.

Of twice as many, temporaries went back to the system and were cleared anew for each piece (docs/lab/experiments.md)."""

Piece = Callable[[], memoryview]
"""A task whose result is a part of a tensor's bytes; it depends on no other."""

Span = tuple[int, int | None]
"""Indices [start, stop) of a tensor's first dimension; None: to its end."""

WHOLE: Span = (0, None)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the artifact. `rows` and `columns` are those of the matrix behind packed bytes."""

    dtype: DtypeName
    shape: tuple[int, ...]
    rows: int
    columns: int
    scheme: Scheme

    @property
    def size_bytes(self) -> int:
        """Bytes in the artifact before compression."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def columns_of(expression: Expression) -> int:
    """Return the columns of a matrix; 1 for a vector."""
    return expression.shape[1] if len(expression.shape) == 2 else 1


def stored_tensor(expression: Expression) -> StoredTensor:
    """Return how a Stored expression that no backend has packed is stored."""
    assert not isinstance(expression, Packed), f"the layout {expression.layout!r} is a backend's"
    scheme = stored_scheme(expression)
    assert isinstance(scheme, Dense), "a quantized weight is packed before it is stored"
    assert scheme.dtype == "f32", "vectors are stored as f32"
    return StoredTensor("f32", expression.shape, expression.shape[0], columns_of(expression), scheme)


def pieces(expression: Expression, files: SourceFiles, span: Span = WHOLE) -> Iterator[Piece]:
    """Yield the tasks whose results, in order, are the tensor's bytes. Sources are read through `files`."""
    return row_pieces(stored_tensor(expression), partial(_dense_bytes, expression, files), span)


def row_pieces(
    tensor: StoredTensor, evaluated: Callable[[int, int], memoryview], span: Span = WHOLE, *, rows: int = 1
) -> Iterator[Piece]:
    """Yield the tasks `evaluated(start, stop)` for ranges of the tensor's first dimension, within `span`, that have at
    most about PIECE_WEIGHTS weights each; an index of it stands for `rows` rows."""
    step = max(1, PIECE_WEIGHTS // (rows * max(tensor.columns, 1)))
    first, last = span[0], tensor.shape[0] if span[1] is None else span[1]
    for start in range(first, last, step):
        yield partial(evaluated, start, min(start + step, last))


def _dense_bytes(expression: Expression, files: SourceFiles, start: int, stop: int) -> memoryview:
    stored = evaluate_stored(expression, start, stop, files)
    assert not isinstance(stored, QuantizedRows)
    return np.ascontiguousarray(stored).data.cast("B")
