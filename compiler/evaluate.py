"""Turns rows of weight expressions into numbers, and nothing else does.

`evaluate_rows` computes rows [start, stop) of an expression in f32; `evaluate_stored` computes them as their scheme
stores them, which a backend then packs. A task touches only the rows it needs, so memory is bounded by the rows asked
for, whatever the tensor's size. Both are pure functions of the expression and the open files that it names.
"""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.codes import Codes
from pyc.compiler.evaluate_codes import coded_rows, kept_rows, kept_scheme
from pyc.compiler.evaluate_fused import fused_rows, is_fused
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.fp4 import matrix_factor
from pyc.compiler.fp8 import BLOCK_SIDE, scales_of
from pyc.compiler.quantization import TILE_ELEMENTS, QuantizedRows, StoredRows, float8_rows, nvfp4_rows, store_rows
from pyc.compiler.schemes import Dense, Float8, LookupGroup, Scheme
from pyc.compiler.source_values import read_rows, require_finite, widened
from pyc.compiler.weights import (
    Blended,
    Constant,
    Expression,
    Rounded,
    ScaledColumns,
    ScaledRows,
    Source,
    Stacked,
    Stored,
    Transposed,
)
from pyc.runtime.host.forks import ForkSafeLock
from pyc.runtime.host.rounding import round_up

Floats = NDArray[np.float32]

def evaluate_rows(expression: Expression, start: int, stop: int, files: SourceFiles) -> Floats:
    """Return rows [start, stop) of an unstored expression as f32 [stop - start, ...].

    Raises IngestError for NaN or infinity in a source (naming the tensor) and for a file that has shrunk.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is stored is checked
        return _evaluated(expression, start, stop, files)


def _evaluated(expression: Expression, start: int, stop: int, files: SourceFiles) -> Floats:
    if is_fused(expression):
        return fused_rows(expression, start, stop, files, _evaluated)
    if isinstance(expression, Codes):
        return coded_rows(expression, start, stop, files)
    match expression:
        case Source():
            return widened(expression, read_rows(expression, start, stop, files))
        case Constant(values):
            return np.array(values[start:stop], np.float32)
        case Transposed(base):
            return np.ascontiguousarray(_evaluated(base, 0, base.shape[0], files).T[start:stop])
        case ScaledRows(base, vector):
            rows, factors = _evaluated(base, start, stop, files), _evaluated(vector, start, stop, files)
            return rows * (factors if rows.ndim == 1 else factors[:, None])
        case ScaledColumns(base, vector):
            return _evaluated(base, start, stop, files) * _evaluated(vector, 0, vector.shape[0], files)
        case Blended(base, weight):
            return np.float32(1) + np.float32(weight) * (_evaluated(base, start, stop, files) - np.float32(1))
        case Stacked(parts):
            found = _pieces(parts, start, stop)
            return np.concatenate([_evaluated(part, first, last, files) for part, first, last in found])
        case _:
            raise AssertionError(f"{type(expression).__name__} has no f32 value")


def evaluate_stored(expression: Expression, start: int, stop: int, files: SourceFiles) -> StoredRows:
    """Return rows [start, stop) of a Stored expression, or of a stack of them, as their scheme stores them."""
    if isinstance(expression, Stacked):
        pieces = _pieces(expression.parts, start, stop)
        found = [evaluate_stored(part, first, last, files) for part, first, last in pieces]
        return found[0] if len(found) == 1 else _joined(found)
    if isinstance(expression, Rounded):
        zero = None if expression.zero is None else read_rows(expression.zero, start, stop, files)
        outer = None if expression.outer is None else read_rows(expression.outer, start, stop, files)
        codes, scale = (read_rows(part, start, stop, files) for part in (expression.codes, expression.scale))
        return QuantizedRows(*cast("tuple[Any, Any, Any, Any]", (codes, scale, zero, outer)))
    assert isinstance(expression, Stored), type(expression).__name__
    base, scheme = expression.base, expression.scheme
    if isinstance(base, Source) and isinstance(scheme, Dense) and scheme.dtype == base.dtype:
        raw = read_rows(base, start, stop, files)
        require_finite(base, raw)
        return raw
    if is_kept(expression):
        assert isinstance(base, Codes)
        return kept_rows(base, start, stop, files)
    if isinstance(scheme, Float8):
        return _float8_rows(expression, scheme, start, stop, files)
    if isinstance(scheme, LookupGroup) and scheme.scales == "e4m3":
        factor = np.full((stop - start, 1), matrix_factor(_largest(expression, files)), np.float32)
        return nvfp4_rows(evaluate_rows(base, start, stop, files), scheme, factor)
    return store_rows(evaluate_rows(base, start, stop, files), scheme)


def _float8_rows(stored: Stored, scheme: Float8, start: int, stop: int, files: SourceFiles) -> QuantizedRows:
    """Return rows by the scales of the whole matrix: those of blocks take all rows of the block."""
    if scheme.scaling == "row":
        return float8_rows(evaluate_rows(stored.base, start, stop, files), scheme)
    if scheme.scaling == "tensor":
        scale = np.full((stop - start, 1), scales_of(_largest(stored, files), scheme), np.float32)
        return float8_rows(evaluate_rows(stored.base, start, stop, files), scheme, scale)
    first, last = start // BLOCK_SIDE * BLOCK_SIDE, min(round_up(stop, BLOCK_SIDE), stored.shape[0])
    whole = float8_rows(evaluate_rows(stored.base, first, last, files), scheme)
    part = slice(start - first, stop - first)
    return QuantizedRows(whole.codes[part], whole.scale[part], None)


_LARGEST: WeakKeyDictionary[SourceFiles, dict[Stored, Floats]] = WeakKeyDictionary()
_LARGEST_LOCK = ForkSafeLock()


def _largest(stored: Stored, files: SourceFiles) -> Floats:
    """Return the largest magnitude, f32 [], of a whole matrix, which is read once for all ranges of its rows."""
    with _LARGEST_LOCK.lock:
        known = _LARGEST.setdefault(files, {})
        if stored not in known:
            rows, columns = stored.shape
            step = max(1, 32 * TILE_ELEMENTS // max(columns, 1))
            found = np.zeros((), np.float32)
            for at in range(0, rows, step):
                part = evaluate_rows(stored.base, at, min(at + step, rows), files)
                found = np.maximum(found, np.maximum(part.max(initial=0), -part.min(initial=0)))
            known[stored] = found
        return known[stored]


def is_rounded(expression: Expression) -> bool:
    """Whether codes were chosen before, so that what they stand for is no more known than they are."""
    if isinstance(expression, Stacked):
        return any(map(is_rounded, expression.parts))
    return isinstance(expression, Rounded) or is_kept(expression)


def is_kept(expression: Expression) -> bool:
    """Whether a stored weight's scheme is that of a checkpoint's own codes, which are then taken as they are."""
    if not isinstance(expression, Stored) or not isinstance(expression.base, Codes):
        return False
    kept = kept_scheme(expression.base)
    return kept is not None and kept.name == expression.scheme.name


def unstored(expression: Expression) -> Expression:
    """Return what a Stored expression, or a stack of them, stores."""
    if isinstance(expression, Stacked):
        return Stacked(tuple(unstored(part) for part in expression.parts))
    assert isinstance(expression, Stored), type(expression).__name__
    return expression.base


def stored_scheme(expression: Expression) -> Scheme:
    """Return the scheme of a Stored expression or of a stack of them."""
    stored = expression.parts[0] if isinstance(expression, Stacked) else expression
    assert isinstance(stored, Stored | Rounded), type(stored).__name__
    return stored.scheme


def _pieces(parts: tuple[Expression, ...], start: int, stop: int) -> list[tuple[Expression, int, int]]:
    """Return the parts of a stack that rows [start, stop) touch, each with its own row range."""
    found: list[tuple[Expression, int, int]] = []
    offset = 0
    for part in parts:
        rows = part.shape[0]
        first, last = max(start - offset, 0), min(stop - offset, rows)
        if first < last:
            found.append((part, first, last))
        offset += rows
    return found


def _joined(found: list[StoredRows]) -> StoredRows:
    arrays = [rows for rows in found if isinstance(rows, np.ndarray)]
    if len(arrays) == len(found):
        return np.concatenate(arrays)
    quantized = [rows for rows in found if isinstance(rows, QuantizedRows)]
    zeros = [rows.zero for rows in quantized if rows.zero is not None]
    outer = [rows.outer for rows in quantized if rows.outer is not None]
    return QuantizedRows(
        np.concatenate([rows.codes for rows in quantized]),
        np.concatenate([rows.scale for rows in quantized]),
        np.concatenate(zeros) if zeros else None,
        np.concatenate(outer) if outer else None,
    )
