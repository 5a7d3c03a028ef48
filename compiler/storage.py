"""What a weight expression looks like in the artifact: dtype, shape and the pieces it is computed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from pyc.compiler.evaluate import PackRows, evaluate_panels, evaluate_stored, store_panels, stored_scheme
from pyc.compiler.layouts import LANES, panel_layout
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.schemes import Dense, Scheme
from pyc.compiler.source_files import SourceFiles
from pyc.compiler.weights import Expression, Packed
from pyc.runtime.artifact.dtypes import DTYPES, DtypeName

PIECE_WEIGHTS = 1 << 21
"""Weights evaluated at once: 8 MiB of f32, times a few temporaries, is what a worker holds.

Of twice as many, temporaries went back to the system and were cleared anew for each piece (docs/experiments.md)."""


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


def stored_tensor(expression: Expression) -> StoredTensor:
    """Return how a Stored or Packed expression is stored."""
    columns = expression.shape[1] if len(expression.shape) == 2 else 1
    if isinstance(expression, Packed):
        scheme = stored_scheme(expression.base)
        layout = panel_layout(scheme, columns)
        shape = (layout.panels(expression.shape[0]), layout.panel_bytes)
        return StoredTensor("u8", shape, expression.shape[0], columns, scheme)
    scheme = stored_scheme(expression)
    assert isinstance(scheme, Dense), "a quantized weight is packed before it is stored"
    assert scheme.dtype == "f32", "vectors are stored as f32"
    return StoredTensor("f32", expression.shape, expression.shape[0], columns, scheme)


def pieces(
    expression: Expression, files: SourceFiles, pack: PackRows = store_panels
) -> Iterator[Callable[[], memoryview]]:
    """Yield the tasks whose results, in order, are the tensor's bytes; each is independent of the others.

    Sources are read through `files`; `pack` quantizes and packs rows; it is called by several threads at once.
    """
    tensor = stored_tensor(expression)
    if isinstance(expression, Packed):
        step = max(1, PIECE_WEIGHTS // (LANES * max(tensor.columns, 1)))
        for start in range(0, tensor.shape[0], step):
            stop = min(start + step, tensor.shape[0])
            yield partial(_panel_bytes, expression, start, stop, files, pack)
        return
    step = max(1, PIECE_WEIGHTS // max(tensor.columns, 1))
    for start in range(0, tensor.rows, step):
        stop = min(start + step, tensor.rows)
        yield partial(_dense_bytes, expression, start, stop, files)


def _panel_bytes(expression: Packed, start: int, stop: int, files: SourceFiles, pack: PackRows) -> memoryview:
    return evaluate_panels(expression, start, stop, files, pack).data.cast("B")


def _dense_bytes(expression: Expression, start: int, stop: int, files: SourceFiles) -> memoryview:
    stored = evaluate_stored(expression, start, stop, files)
    assert not isinstance(stored, QuantizedRows)
    return np.ascontiguousarray(stored).data.cast("B")
