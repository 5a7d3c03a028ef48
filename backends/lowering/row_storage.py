"""The bytes of weights for a backend whose matrices lie row after row; all else lies as every backend has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pyc.compiler import storage
from pyc.compiler.evaluate import evaluate_stored, stored_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.schemes import Quantized
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor, row_pieces
from pyc.compiler.weights import Expression, Packed


@dataclass(frozen=True, slots=True)
class RowStorage:
    """How a backend stores matrices: `packed_tensor` says what one is, and `laid_out` makes rows of codes of a scheme
    what a layout has of them."""

    packed_tensor: Callable[[Packed], StoredTensor]
    laid_out: Callable[[QuantizedRows, Quantized, str], NDArray[np.generic]]

    def stored_tensor(self, expression: Expression) -> StoredTensor:
        """Return how a weight of a lowered module is stored; QuantizeError when groups do not divide its columns."""
        if isinstance(expression, Packed):
            return self.packed_tensor(expression)
        return storage.stored_tensor(expression)

    def pieces(self, expression: Expression, files: SourceFiles, span: Span = WHOLE) -> Iterator[Piece]:
        """Yield the tasks whose results, in order, are the bytes of `span` of the tensor, read through `files`."""
        if not isinstance(expression, Packed):
            return storage.pieces(expression, files, span)
        return row_pieces(self.packed_tensor(expression), partial(self._matrix_bytes, expression, files), span)

    def _matrix_bytes(self, expression: Packed, files: SourceFiles, start: int, stop: int) -> memoryview:
        stored = evaluate_stored(expression.base, start, stop, files)
        if isinstance(stored, QuantizedRows):
            scheme = stored_scheme(expression.base)
            assert isinstance(scheme, Quantized)
            stored = self.laid_out(stored, scheme, expression.layout)
        return np.ascontiguousarray(stored).data.cast("B")
