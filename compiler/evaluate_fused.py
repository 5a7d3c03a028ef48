"""Rows of weights that adapters changed, in float64: rounded to f32 once, behind the last adapter.

`fused_rows` takes the nodes that adapters bring; of anything below them it takes f32 rows from `Narrow`
(`compiler.evaluate`). Small values that every range of rows needs whole, and singular vectors, are kept for a few
matrices at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.merging import mixed, nearest_of_product, nearest_of_rank, points_of_arc
from pyc.compiler.rotations import butterfly, cayley
from pyc.compiler.weights import (
    Added,
    Between,
    Blended,
    Directed,
    Expression,
    Hadamard,
    Kronecker,
    Leading,
    LowRank,
    MatMul,
    Mixed,
    Replaced,
    Rotated,
    Rotations,
    ScaledColumns,
    ScaledRows,
    Stacked,
    Transposed,
    Truncated,
)
from pyc.runtime.host.forks import ForkSafeLock

Wide = NDArray[np.floating]
Narrow = Callable[[Expression, int, int, SourceFiles], NDArray[np.float32]]
FusedNode = (
    LowRank
    | Added
    | Directed
    | Replaced
    | Rotated
    | MatMul
    | Hadamard
    | Kronecker
    | Leading
    | Mixed
    | Truncated
    | Between
)

KEPT = 6
"""Whole values kept for each set of files: those of the matrices that its threads are at."""
ROWS_AT_A_TIME = 64
"""Rows whose float64 values stay in a core's cache."""


class _Kept:
    """Whole values by expression, the last few of them; each is computed by one thread."""

    def __init__(self) -> None:
        self.lock = RLock()  # a value may be made of another
        self.values: OrderedDict[Expression, Any] = OrderedDict()


_KEPT: WeakKeyDictionary[SourceFiles, _Kept] = WeakKeyDictionary()


def is_fused(expression: Expression) -> bool:
    """Return whether `fused_rows` evaluates an expression: an adapter's node, or factors on one."""
    if isinstance(expression, ScaledRows | ScaledColumns):
        return is_fused(expression.base)
    return isinstance(expression, FusedNode)


def fused_rows(
    expression: Expression, start: int, stop: int, files: SourceFiles, narrow: Narrow
) -> NDArray[np.float32]:
    """Return rows [start, stop) of an expression as f32, a few at a time."""
    result = np.empty((stop - start, *expression.shape[1:]), np.float32)
    evaluation = _Evaluation(files, narrow)
    for first in range(start, stop, ROWS_AT_A_TIME):
        last = min(first + ROWS_AT_A_TIME, stop)
        result[first - start : last - start] = evaluation.rows(expression, first, last)
    return result


class _Evaluation:
    """Evaluates within one range of rows: factors are read once for it."""

    def __init__(self, files: SourceFiles, narrow: Narrow) -> None:
        self._files, self._narrow = files, narrow
        self._whole: dict[Expression, Wide] = {}
        self._indices: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def rows(self, expression: Expression, start: int, stop: int) -> Wide:
        """Return rows [start, stop) in float64."""
        match expression:
            case LowRank(base, a, b, scale):
                update: Wide = (self._factor(b, start, stop) * scale) @ self.whole(a)
                update += self._base(base, start, stop)
                return update
            case Added(base, update_of, scale):
                update = self.rows(update_of, start, stop)
                update *= scale
                update += self._base(base, start, stop)
                return update
            case Directed(base, magnitude):
                rows = self.rows(base, start, stop)
                lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
                rows *= (self.rows(magnitude, start, stop) / lengths)[:, None]
                return rows
            case Replaced(base, brought, indices):
                rows = self.rows(base, start, stop)
                if indices not in self._indices:
                    self._indices[indices] = np.array(indices)
                at = self._indices[indices]
                for place in np.flatnonzero((at >= start) & (at < stop)).tolist():
                    rows[indices[place] - start] = self.rows(brought, place, place + 1)[0]
                return rows
            case Rotated(base, rotations, groups):
                return self._rotated(self.rows(base, start, stop), rotations, groups)
            case MatMul(first, second):
                return self._factor(first, start, stop) @ self.whole(second)
            case Hadamard(first, second):
                product = self.rows(first, start, stop)
                product *= self.rows(second, start, stop)
                return product
            case Kronecker(first, second):
                return self._kronecker(first, second, start, stop)
            case ScaledRows(base, vector):
                rows = self.rows(base, start, stop)
                rows *= self.rows(vector, start, stop)[:, None]
                return rows
            case ScaledColumns(base, vector):
                rows = self.rows(base, start, stop)
                rows *= self.whole(vector)
                return rows
            case Blended(base, weight):
                return 1 + weight * (self.rows(base, start, stop) - 1)
            case Transposed(base):
                return self.whole(base).T[start:stop]
            case Stacked(parts):
                return np.concatenate([self.whole(part) for part in parts])[start:stop]
            case Leading(base, _, columns):
                return self.rows(base, start, stop)[:, :columns]
            case Mixed():
                kept: Wide = self._kept(expression)
                return kept[start:stop].copy()
            case Truncated():
                left, right = self._kept(expression)
                nearest: Wide = left[start:stop] @ right
                return nearest
            case Between(first, second):
                at_first, at_second = self._kept(expression)
                point: Wide = self.rows(first, start, stop) * at_first
                point += self.rows(second, start, stop) * at_second
                return point
            case _:
                return self._narrow(expression, start, stop, self._files).astype(np.float64)

    def whole(self, expression: Expression) -> Wide:
        """Return all rows of a small matrix."""
        if expression not in self._whole:
            self._whole[expression] = self.rows(expression, 0, expression.shape[0])
        return self._whole[expression]

    def _factor(self, expression: Expression, start: int, stop: int) -> Wide:
        """Return rows of a factor; those of a transposed one would be read whole each time."""
        if isinstance(expression, Transposed | Stacked):
            return self.whole(expression)[start:stop]
        return self.rows(expression, start, stop)

    def _base(self, expression: Expression, start: int, stop: int) -> Wide | NDArray[np.float32]:
        """Return rows to add to: f32 where they are no wider."""
        if isinstance(expression, FusedNode | ScaledRows | ScaledColumns):
            return self.rows(expression, start, stop)
        return self._narrow(expression, start, stop, self._files)

    def _rotated(self, rows: Wide, rotations: Rotations, groups: int) -> Wide:
        blocks = self._kept(rotations)
        order = butterfly(rows.shape[1], groups, rotations.size) if groups else None
        if order is not None:
            rows = np.take(rows, np.argsort(order), axis=1)
        split = rows.reshape(len(rows), *blocks.shape[:2]).transpose(1, 0, 2)
        turned: Wide = np.matmul(split, blocks.transpose(0, 2, 1)).transpose(1, 0, 2).reshape(rows.shape)
        return turned if order is None else np.take(turned, order, axis=1)

    def _kronecker(self, first: Expression, second: Expression, start: int, stop: int) -> Wide:
        height = second.shape[0]
        above, below = start // height, (stop - 1) // height
        if above == below:
            low, high = start - above * height, stop - above * height
            kronecker: Wide = np.kron(self.rows(first, above, above + 1), self.rows(second, low, high))
            return kronecker
        index = np.arange(start, stop)
        upper = self.rows(first, above, below + 1)[index // height - above]
        lower = self.whole(second)[index % height]
        product: Wide = (upper[:, :, None] * lower[:, None, :]).reshape(stop - start, -1)
        return product

    def _kept(self, expression: Expression) -> Any:
        with _KEPT_LOCK.lock:
            kept = _KEPT.setdefault(self._files, _Kept())
        with kept.lock:
            if expression in kept.values:
                kept.values.move_to_end(expression)
                return kept.values[expression]
            value = kept.values[expression] = self._computed(expression)
            while len(kept.values) > KEPT:
                kept.values.popitem(last=False)
            return value

    def _computed(self, expression: Expression) -> Any:
        match expression:
            case Rotations(generators, count, size, terms, limit):
                return cayley(self.whole(generators), count, size, terms, limit)
            case Mixed():
                return self._mixed(expression)
            case Truncated(MatMul(first, second), rank):
                return nearest_of_product(self.whole(first), self.whole(second), rank)
            case Truncated(Mixed() as mix, rank):
                return nearest_of_rank(self._mixed(mix), rank)
            case Truncated(base, rank):
                return nearest_of_rank(self.whole(base), rank)
            case Between(first, second, position):
                assert isinstance(first, MatMul)
                assert isinstance(second, MatMul)
                factors = [self.whole(part) for product in (first, second) for part in (product.first, product.second)]
                return points_of_arc(factors[0], factors[1], factors[2], factors[3], position)
            case _:
                raise AssertionError(type(expression).__name__)

    def _mixed(self, expression: Mixed) -> Wide:
        parts = [self.whole(part) for part in expression.parts]
        return mixed(parts, expression.weights, expression.density, expression.seeds, expression.vote)


_KEPT_LOCK = ForkSafeLock()
