"""What a weight of the CPU looks like in the artifact: matrices as panels, all else as every backend has it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.cpu.packing import PackRows, evaluate_panels, store_panels
from pyc.compiler import storage
from pyc.compiler.evaluate import stored_scheme
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor, columns_of, row_pieces
from pyc.compiler.weights import Expression, Packed


def stored_tensor(expression: Expression) -> StoredTensor:
    """Return how a Stored or Packed expression is stored; QuantizeError when groups do not divide its columns."""
    if not isinstance(expression, Packed):
        return storage.stored_tensor(expression)
    columns, scheme = columns_of(expression), stored_scheme(expression.base)
    layout = panel_layout(scheme, columns)
    shape = (layout.panels(expression.shape[0]), layout.panel_bytes)
    return StoredTensor("u8", shape, expression.shape[0], columns, scheme)


def pieces(
    expression: Expression, files: SourceFiles, pack: PackRows = store_panels, span: Span = WHOLE
) -> Iterator[Piece]:
    """Yield the tasks whose results, in order, are the bytes of the tensor, or of panels in `span`.

    Sources are read through `files`; `pack` quantizes and packs rows; it is called by several threads at once.
    """
    if not isinstance(expression, Packed):
        return storage.pieces(expression, files, span)
    return row_pieces(stored_tensor(expression), partial(_panel_bytes, expression, files, pack), span, rows=LANES)


def _panel_bytes(expression: Packed, files: SourceFiles, pack: PackRows, start: int, stop: int) -> memoryview:
    return evaluate_panels(expression, start, stop, files, pack).data.cast("B")
