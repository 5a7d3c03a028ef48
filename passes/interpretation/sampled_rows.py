"""A few rows of a matrix, for checks that no build should wait for."""

from __future__ import annotations

import numpy as np

from pyc.compiler.codes import Codes
from pyc.compiler.evaluate import Floats, evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.operands import children
from pyc.compiler.weights import (
    Blended,
    Constant,
    Expression,
    LowRank,
    ScaledColumns,
    ScaledRows,
    Source,
    Transposed,
)

BLOCKS, BLOCK_ROWS = 4, 4
"""Rows that are looked at, evenly spread."""

_CHEAP = Source | Codes | Constant | LowRank | ScaledColumns | ScaledRows | Blended | Transposed
"""Expressions of which a few rows are soon computed."""


def is_cheap(expression: Expression) -> bool:
    """Whether a few rows of it are soon computed."""
    return isinstance(expression, _CHEAP) and all(map(is_cheap, children(expression)))


def some_rows(expression: Expression, files: SourceFiles) -> Floats:
    """Rows of a matrix, evenly spread, 16 at most. Raises IngestError and QuantizeError."""
    count = expression.shape[0]
    starts = sorted({block * max(count - BLOCK_ROWS, 0) // max(BLOCKS - 1, 1) for block in range(BLOCKS)})
    parts = [evaluate_rows(expression, start, min(start + BLOCK_ROWS, count), files) for start in starts]
    return np.concatenate(parts)
