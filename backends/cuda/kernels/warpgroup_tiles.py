"""How linear layers are divided where warpgroups multiply (`templates/cuda/include/linear_gemm_warpgroup.cuh`, and
`linear_gemm_float8.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyc.backends.cuda.kernels.kernel import WARP
from pyc.backends.cuda.kernels.linear_spec import GEMV_ROWS, LinearSpec
from pyc.backends.cuda.kernels.linear_tiles import MULTIPROCESSORS, tile_bytes
from pyc.runtime.host.rounding import ceil_div, round_up

TILE_INPUTS, FLOAT8_INPUTS = 64, 128
"""Inputs of a tile: rows of 128 bytes of bf16, or of floating point of 8 bits."""
_ROW_BYTES = 128
_OUTPUTS = 64
"""Of a warpgroup."""
_SHARED_BYTES = 227 << 10
"""Of a block, on the GPUs that have these instructions."""
_MOST_STAGES = 8
_BYTES_A_CLOCK = 32
"""Of a multiprocessor, from the second-level cache: an estimate for an H100, by which divisions are compared."""
_CLOCKS_OF_A_BLOCK = 2000
"""Before the first product of a block and behind its last, about."""


@dataclass(frozen=True, slots=True)
class WarpgroupTiles:
    """What a block does: `warpgroups` of 64 outputs each, `rows` rows, `stages` tiles of 64 inputs."""

    rows: int
    warpgroups: int
    stages: int = 4

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return _OUTPUTS * self.warpgroups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 4 * WARP * self.warpgroups


_TILES = tuple(WarpgroupTiles(*shape) for shape in ((256, 2), (128, 2), (64, 2), (64, 1), (32, 2), (32, 1)))
"""Rows and warpgroups of a block, larger first."""


def suits_warpgroups(spec: LinearSpec) -> bool:
    """Whether the kernel takes a layer: products of bf16, weights that fit one number of it, in rows of whole 16 bytes
    where they are read as they are."""
    matrix = spec.matrix
    is_copied = matrix.kind != "BF16" or spec.inputs % 8 == 0
    return spec.rows > GEMV_ROWS and not matrix.is_wide and is_copied


def suits_float8(spec: LinearSpec) -> bool:
    """Whether the kernel takes a layer that multiplies floating point of 8 bits by activations of 8 bits."""
    matrix = spec.matrix
    is_float8 = matrix.kind in ("E4M3", "E5M2") and matrix.group in (0, FLOAT8_INPUTS)
    return spec.rows > GEMV_ROWS and spec.activations == "fp8" and is_float8 and spec.inputs % 16 == 0


def float8_tiles(spec: LinearSpec) -> WarpgroupTiles:
    """Return how a GEMM over floating point of 8 bits is divided, of which a thread has the sums twice."""
    fitting = [WarpgroupTiles(128, 3), *(tiles for tiles in _TILES if tiles.rows <= 128)]
    chosen = min(fitting, key=lambda tiles: _float8_clocks(spec, tiles))
    return replace(chosen, stages=min(_SHARED_BYTES // _float8_stage_bytes(chosen), _MOST_STAGES))


def _float8_clocks(spec: LinearSpec, tiles: WarpgroupTiles) -> float:
    blocks = ceil_div(spec.outputs, tiles.outputs) * ceil_div(spec.rows, tiles.rows)
    multiplying = tiles.warpgroups * tiles.rows // 2 * (FLOAT8_INPUTS // 32)
    of_tile = max(multiplying, _float8_stage_bytes(tiles) / _BYTES_A_CLOCK)
    of_block = ceil_div(spec.inputs, FLOAT8_INPUTS) * of_tile + _CLOCKS_OF_A_BLOCK
    return ceil_div(blocks, MULTIPROCESSORS) * of_block


def _float8_stage_bytes(tiles: WarpgroupTiles) -> int:
    return (tiles.rows + tiles.outputs) * _ROW_BYTES


def float8_shared_bytes(tiles: WarpgroupTiles) -> int:
    """Return the bytes of shared memory of a block of the same."""
    return tiles.stages * _float8_stage_bytes(tiles)


def warpgroup_tiles(spec: LinearSpec) -> WarpgroupTiles:
    """Return how a GEMM is divided: so that the multiprocessor with most blocks is done soonest."""
    has_sums_of_groups = bool(spec.matrix.group and not spec.matrix.folds)
    fitting = [tiles for tiles in _TILES if tiles.rows <= 128 or not (has_sums_of_groups or spec.splits)]
    chosen = min(fitting, key=lambda tiles: _clocks(spec, tiles))
    stages = min(_SHARED_BYTES // _stage_bytes(spec, chosen), _MOST_STAGES)
    return replace(chosen, stages=stages)


def _clocks(spec: LinearSpec, tiles: WarpgroupTiles) -> float:
    """Return the clocks of the multiprocessor that has most blocks."""
    blocks = ceil_div(spec.outputs, tiles.outputs) * ceil_div(spec.rows, tiles.rows)
    multiplying = tiles.warpgroups * tiles.rows // 2 * (TILE_INPUTS // 16) * (2 if spec.splits else 1)
    loading = (tiles.outputs * TILE_INPUTS * spec.matrix.bits / 8 + _row_bytes(spec, tiles)) / _BYTES_A_CLOCK
    of_block = ceil_div(spec.inputs, TILE_INPUTS) * max(multiplying, loading) + _CLOCKS_OF_A_BLOCK
    return ceil_div(blocks, MULTIPROCESSORS) * of_block


def _stage_bytes(spec: LinearSpec, tiles: WarpgroupTiles) -> int:
    if spec.matrix.kind == "BF16":
        weights = tiles.outputs * _ROW_BYTES
    else:
        weights = round_up(tile_bytes(spec.matrix, spec.inputs, tiles.outputs, TILE_INPUTS), 8 * _ROW_BYTES)
    return _row_bytes(spec, tiles) + weights


def _row_bytes(spec: LinearSpec, tiles: WarpgroupTiles) -> int:
    return tiles.rows * _ROW_BYTES * (2 if spec.splits else 1)


def warpgroup_grid(spec: LinearSpec, tiles: WarpgroupTiles) -> tuple[int, int, int]:
    """Return the grid: blocks that share a part of the matrix are neighbours."""
    return (ceil_div(spec.rows, tiles.rows), ceil_div(spec.outputs, tiles.outputs), 1)


def warpgroup_shared_bytes(spec: LinearSpec, tiles: WarpgroupTiles) -> int:
    """Return the bytes of shared memory of a block."""
    return tiles.stages * _stage_bytes(spec, tiles)
