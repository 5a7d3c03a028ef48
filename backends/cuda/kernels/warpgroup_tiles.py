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
MOST_SHARED_BYTES = 227 << 10
"""Of a block, on the GPUs that have these instructions."""
_MOST_STAGES = 8
_BYTES_A_CLOCK = 40
"""Of a multiprocessor, from the second-level cache, about: an estimate for an H200, by which
divisions are compared."""
_CLOCKS_OF_A_BLOCK, _CLOCKS_OF_A_SPLIT = 2000, 8000
"""Before the first product of a block and behind its last, and where others have to be added, about."""
_DECODING = 180
"""Clocks in which the warps of a multiprocessor turn codes for 64 outputs by 64 inputs into bf16, about."""
_CODED_TURN, _DENSE_TURN = 500, 250
"""Clocks of a tile of 64 inputs that one warpgroup alone does, one step after another, about (measured on an H200)."""
_LEAST_STAGES = 4


@dataclass(frozen=True, slots=True)
class WarpgroupTiles:
    """What a block does: `rows` rows by `warpgroups` of 64 outputs each, times `sharing` that have 64 inputs each of a
    tile, of which `stages` are in shared memory. `splits` blocks have a part of the tiles each."""

    rows: int
    warpgroups: int
    stages: int = 4
    sharing: int = 1
    splits: int = 1

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return _OUTPUTS * self.warpgroups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 4 * WARP * self.warpgroups * self.sharing

    @property
    def partial_bytes(self) -> int:
        """Bytes of the sums of the splits of a block."""
        return self.splits * self.rows * self.outputs * 4 if self.splits > 1 else 0


_SHAPES = (
    *((256, 2, 1), (128, 2, 1), (64, 4, 1), (64, 2, 1), (64, 2, 2), (64, 1, 1), (64, 1, 2), (64, 1, 4)),
    *((32, 4, 1), (32, 2, 1), (32, 1, 1), (32, 1, 4)),
)
"""Rows and warpgroups of a block, and how many share a tile, larger first."""
_FLOAT8_SHAPES = ((128, 3), (128, 2), (64, 2), (64, 1), (32, 2), (32, 1))
_SPLITS = (1, 2, 4)


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
    fitting = [WarpgroupTiles(*shape) for shape in _FLOAT8_SHAPES]
    chosen = min(fitting, key=lambda tiles: _float8_clocks(spec, tiles))
    return replace(chosen, stages=min(MOST_SHARED_BYTES // _float8_stage_bytes(chosen), _MOST_STAGES))


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
    has_few_registers = spec.splits or bool(spec.matrix.group and not spec.matrix.folds)
    shapes = [shape for shape in _SHAPES if shape[0] <= 128 or not has_few_registers]
    every = [
        WarpgroupTiles(rows, warpgroups, sharing=sharing, splits=splits)
        for rows, warpgroups, sharing in shapes
        for splits in _SPLITS
    ]
    fitting = [tiles for tiles in every if _suits(spec, tiles)]
    chosen = min(fitting, key=lambda tiles: _clocks(spec, tiles))
    stages = min(MOST_SHARED_BYTES // _stage_bytes(spec, chosen), _MOST_STAGES)
    return replace(chosen, stages=stages)


def _suits(spec: LinearSpec, tiles: WarpgroupTiles) -> bool:
    """Whether stages fit, splits have tiles each, and blocks that share results can be counted."""
    blocks = ceil_div(spec.outputs, tiles.outputs) * ceil_div(spec.rows, tiles.rows)
    count = ceil_div(spec.inputs, TILE_INPUTS * tiles.sharing)
    has_tiles = tiles.splits == 1 or count >= 8 * tiles.splits
    fits = MOST_SHARED_BYTES // _stage_bytes(spec, tiles) >= _LEAST_STAGES
    return has_tiles and fits and (tiles.splits == 1 or blocks <= 2 * MULTIPROCESSORS)


def _clocks(spec: LinearSpec, tiles: WarpgroupTiles) -> float:
    """Return the clocks of the multiprocessor that has most blocks.

    Of 64 inputs: what products take, what codes take to become bf16, by the warps that do it, what copies take; at
    least what one warpgroup has to wait for in turn.
    """
    blocks = ceil_div(spec.outputs, tiles.outputs) * ceil_div(spec.rows, tiles.rows) * tiles.splits
    is_coded = spec.matrix.kind != "BF16"
    multiplying = tiles.warpgroups * tiles.rows // 2 * (TILE_INPUTS // 16) * (2 if spec.splits else 1)
    decoding = _DECODING * tiles.warpgroups * is_coded
    loading = _stage_bytes(spec, tiles) / tiles.sharing / _BYTES_A_CLOCK
    waiting = (_CODED_TURN if is_coded else _DENSE_TURN) / tiles.sharing
    of_tile = max(multiplying, decoding, loading, waiting)
    of_block = ceil_div(spec.inputs, TILE_INPUTS * tiles.splits) * of_tile + _CLOCKS_OF_A_BLOCK
    if tiles.splits > 1:  # sums are written, and read by the last block
        of_block += _CLOCKS_OF_A_SPLIT + 8 * tiles.rows * tiles.outputs / _BYTES_A_CLOCK
    return ceil_div(blocks, MULTIPROCESSORS) * of_block


def _stage_bytes(spec: LinearSpec, tiles: WarpgroupTiles) -> int:
    inputs = TILE_INPUTS * tiles.sharing
    if spec.matrix.kind == "BF16":
        weights = tiles.outputs * inputs * 2
    else:
        weights = round_up(tile_bytes(spec.matrix, spec.inputs, tiles.outputs, inputs), 8 * _ROW_BYTES)
    return tiles.rows * inputs * 2 * (2 if spec.splits else 1) + weights


def warpgroup_grid(spec: LinearSpec, tiles: WarpgroupTiles) -> tuple[int, int, int]:
    """Return the grid: blocks that share a part of the matrix are neighbours."""
    return (ceil_div(spec.rows, tiles.rows), ceil_div(spec.outputs, tiles.outputs), tiles.splits)


def warpgroup_shared_bytes(spec: LinearSpec, tiles: WarpgroupTiles) -> int:
    """Return the bytes of shared memory of a block: stages, and in their place the sums of warps in the end."""
    return max(tiles.stages * _stage_bytes(spec, tiles), (tiles.sharing - 1) * tiles.rows * tiles.outputs * 4)
