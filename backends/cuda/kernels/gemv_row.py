"""How a linear layer of one row is divided where its weights have no scales of groups (`linear_gemv_row.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass

from pyc.backends.cuda.kernels.kernel import WARP
from pyc.backends.cuda.kernels.linear_spec import LinearSpec
from pyc.backends.cuda.kernels.linear_tiles import MULTIPROCESSORS, tile_bytes
from pyc.runtime.host.rounding import ceil_div, round_up

_TILE_K = {"BF16": 64, "E4M3": 128, "E5M2": 128}
"""Inputs of a tile, by kinds of matrices."""
_SHARED_BYTES = {16: 190 << 10, 8: 150 << 10}
"""Of a block, by bits of a weight: of those measured on an H200, what steps are fastest with."""
_LEAST_STAGES, _MOST_STAGES = 3, 8
_LEAST_WARPS, _MOST_WARPS = 4, 16
_MANY_INPUTS = 4096
"""Of which 16 warps have several tiles of bf16 each."""


@dataclass(frozen=True, slots=True)
class RowTiles:
    """What a block does: 16 `mt` outputs at a time, whose inputs its `warps` divide, by tiles of `tile_k` inputs, of
    which a warp has `stages`."""

    tile_k: int
    mt: int
    warps: int
    stages: int
    grid: tuple[int, int, int]
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps

    @property
    def outputs(self) -> int:
        """Outputs of a block at a time."""
        return 16 * self.mt


def suits_rows(spec: LinearSpec) -> bool:
    """Whether a layer can be divided so: one row of bf16, and tiles for the warps of a block."""
    tile_k = _TILE_K.get(spec.matrix.kind)
    is_row = spec.rows == 1 and spec.rounding == "BF16" and not spec.matrix.group
    if tile_k is None or not is_row or spec.inputs < _LEAST_WARPS * tile_k:
        return False
    return row_tiles(spec).stages >= _LEAST_STAGES


def row_tiles(spec: LinearSpec) -> RowTiles:
    """Return how a layer is divided: a block on each multiprocessor, of twice the outputs where it still has several
    turns."""
    tile_k, bits = _TILE_K[spec.matrix.kind], spec.matrix.bits
    mt = 2 if spec.outputs >= 2 * 32 * MULTIPROCESSORS else 1
    warps = _MOST_WARPS if bits == 8 or spec.inputs >= _MANY_INPUTS else _MOST_WARPS // 2
    row_bytes, tile = 2 * round_up(spec.inputs, tile_k), tile_bytes(spec.matrix, spec.inputs, 16 * mt, tile_k)
    while True:
        kept = row_bytes + 2 * warps * 16 * mt * 4  # the row, and the sums of warps, of two turns
        stages = min((_SHARED_BYTES[bits] - kept) // (warps * tile), _MOST_STAGES)
        if warps == _LEAST_WARPS or (stages >= _LEAST_STAGES and warps * tile_k <= spec.inputs):
            break
        warps //= 2
    grid = (min(ceil_div(spec.outputs, 16 * mt), MULTIPROCESSORS), 1, 1)
    return RowTiles(tile_k, mt, warps, stages, grid, kept + stages * warps * tile)
