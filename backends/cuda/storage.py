"""The bytes of weights for CUDA: matrices as `backends.cuda.layouts` has them, all else as every backend has it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from pyc.backends.cuda import layouts
from pyc.compiler import storage
from pyc.compiler.evaluate import evaluate_stored, stored_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.schemes import Quantized
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor, row_pieces
from pyc.compiler.weights import Expression, Packed


def stored_tensor(expression: Expression) -> StoredTensor:
    """Return how a Stored or Packed expression is stored; QuantizeError when groups do not divide its columns."""
    return layouts.stored_tensor(expression) if isinstance(expression, Packed) else storage.stored_tensor(expression)


def pieces(expression: Expression, files: SourceFiles, span: Span = WHOLE) -> Iterator[Piece]:
    """Yield the tasks whose results, in order, are the bytes of `span` of the tensor, sources read through `files`."""
    if not isinstance(expression, Packed):
        return storage.pieces(expression, files, span)
    return row_pieces(stored_tensor(expression), partial(_matrix_bytes, expression, files), span)


def _matrix_bytes(expression: Packed, files: SourceFiles, start: int, stop: int) -> memoryview:
    stored = evaluate_stored(expression.base, start, stop, files)
    if isinstance(stored, QuantizedRows):
        scheme = stored_scheme(expression.base)
        assert isinstance(scheme, Quantized)
        stored = layouts.laid_out(stored, scheme, expression.layout)
    return np.ascontiguousarray(stored).data.cast("B")
