"""Matrix products of a calibration in tiles, which threads share: a build gives BLAS one thread (`keep_blas_small`).

How a product is divided depends on its shape alone, so that codes do not depend on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from pyc.compiler.awaited import Workers
from pyc.compiler.scales import Floats

TILE = 1024
"""Rows of a tile; columns, too, where a product is divided by both."""

_Tile = TypeVar("_Tile")


def product_into(result: Floats, x: Floats, w: Floats, workers: int) -> None:
    """Write x w' to `result` f32 [M, N], of x [M, K] and w [N, K]."""

    def fill(start: int) -> None:
        result[start : start + TILE] = x[start : start + TILE] @ w.T

    _for_each(fill, range(0, len(x), TILE), workers)


def gram(x: Floats, workers: int) -> Floats:
    """Return x' x f32 [K, K], which is symmetric, of x [M, K]."""
    inputs = x.shape[1]
    result = np.empty((inputs, inputs), np.float32)

    def fill(tile: tuple[int, int]) -> None:
        rows, columns = (slice(start, start + TILE) for start in tile)
        own = x[:, rows]
        result[rows, columns] = own.T @ (own if rows == columns else x[:, columns])
        if rows != columns:
            result[columns, rows] = result[rows, columns].T

    starts = range(0, inputs, TILE)
    _for_each(fill, [(row, column) for row in starts for column in starts if row <= column], workers)
    return result


def cross(y: Floats, x: Floats, workers: int) -> Floats:
    """Return y' x f32 [K, N] of y [M, K] and x [M, N]."""
    result = np.empty((y.shape[1], x.shape[1]), np.float32)

    def fill(start: int) -> None:
        result[start : start + TILE] = y[:, start : start + TILE].T @ x

    _for_each(fill, range(0, y.shape[1], TILE), workers)
    return result


def _for_each(fill: Callable[[_Tile], None], tiles: Sequence[_Tile], workers: int) -> None:
    """Call `fill` for each tile, on threads where there are several of both."""
    if min(workers, len(tiles)) < 2:
        for tile in tiles:
            fill(tile)
        return
    with Workers(workers, "pyc-product") as pool:
        for _ in pool.map(fill, tiles):
            pass
