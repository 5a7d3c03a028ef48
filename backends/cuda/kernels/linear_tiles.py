"""How linear layers are divided among blocks, warps and shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyc.backends.cuda.kernels.kernel import WARP
from pyc.backends.cuda.kernels.linear_spec import GEMV_ROWS, LinearSpec
from pyc.backends.cuda.kernels.matrix import MatrixFormat
from pyc.runtime.host.rounding import ceil_div, round_up

RESIDENT_THREADS = 512
"""Threads of a multiprocessor whose registers, 128 each, are enough to keep its memory busy."""

MULTIPROCESSORS = 132
"""Of the GPU that tiles are chosen for: an H100 or H200."""


@dataclass(frozen=True, slots=True)
class GemvTiles:
    """What a block does: warps `wm` x `wk` of 16 `mt` outputs each, and `stages` tiles of `tile_k` inputs a warp."""

    tile_k: int
    mt: int
    wm: int
    wk: int
    stages: int

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return 16 * self.mt * self.wm

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.wm * self.wk

    @property
    def blocks(self) -> int:
        """Blocks of a multiprocessor that registers are left for."""
        return RESIDENT_THREADS // self.threads


@dataclass(frozen=True, slots=True)
class GemmTiles:
    """What a block does: warps `wn` x `wr` of 16 `mt` outputs and 8 `rt` rows each, times `wk` that share tiles of
    `tile_k` inputs, of which `stages` are in shared memory."""

    mt: int
    rt: int
    wn: int
    wr: int
    wk: int = 1
    tile_k: int = 64
    stages: int = 3

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return 16 * self.mt * self.wn

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return 8 * self.rt * self.wr

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.wn * self.wr * self.wk

    @property
    def blocks(self) -> int:
        """Blocks of a multiprocessor that registers are left for."""
        return RESIDENT_THREADS // self.threads if self.mt * self.rt < 16 else 1


_GEMM_TILES = (
    GemmTiles(mt=4, rt=8, wn=4, wr=2),  # 256 x 128
    GemmTiles(mt=4, rt=4, wn=4, wr=2),  # 256 x 64
    GemmTiles(mt=2, rt=8, wn=4, wr=2),  # 128 x 128
    GemmTiles(mt=2, rt=4, wn=4, wr=2),  # 128 x 64
    GemmTiles(mt=1, rt=4, wn=4, wr=2),  # 64 x 64
    GemmTiles(mt=1, rt=4, wn=4, wr=1, wk=2),  # 64 x 32
    GemmTiles(mt=1, rt=4, wn=2, wr=1, wk=4, tile_k=128),  # 32 x 32
    GemmTiles(mt=2, rt=2, wn=2, wr=1, wk=4, tile_k=128),  # 64 x 16
    GemmTiles(mt=1, rt=2, wn=2, wr=1, wk=4, tile_k=128),  # 32 x 16
)
"""Outputs x rows of a block, larger first."""

PRODUCTS_A_CLOCK = 1024
BYTES_A_CLOCK = 24
"""Of a multiprocessor: products of bf16 by mma.sync, and bytes of the second-level cache; estimates for an H100, by
which divisions are compared."""

MOST_BLOCK_SCALES = 32 << 10
"""Shared memory that a block of a GEMV may have for scales."""

SHARED_BYTES = 99 << 10
"""Shared memory that a block may have on every GPU."""
GEMV_SHARED_BYTES = SHARED_BYTES - 512
"""What a block of a GEMV may have of it for tiles: eight rows of its warps keep a number each."""


def gemv_tiles(spec: LinearSpec) -> GemvTiles:
    """Return how a GEMV is divided: so that a GPU has warps enough to keep its memory busy, about 16 on each of its
    multiprocessors, and that few of them read the same activations."""
    tile_k = {32: 32, 16: 64}.get(spec.matrix.bits, 128)
    tiles = ceil_div(spec.inputs, tile_k)
    mt = 2 if spec.outputs >= 8192 or (spec.rows > 2 and spec.outputs >= 2048) else 1
    wk = 8 // mt
    while wk > 1 and (wk > tiles or spec.outputs * wk >= 2 * 16 * mt * 16 * MULTIPROCESSORS):
        wk //= 2
    wm = max(1, 4 // wk)
    is_alone = ceil_div(spec.outputs, 16 * mt * wm) < 2 * MULTIPROCESSORS  # a block on its multiprocessor
    stages = {2: 6, 3: 6, 4: 6 if is_alone and mt > 1 else 4, 5: 4, 8: 4 if is_alone else 3}.get(spec.matrix.bits, 3)
    return GemvTiles(tile_k, mt, wm, wk, stages)


def gemm_tiles(spec: LinearSpec) -> GemmTiles:
    """Return how a GEMM is divided: so that the multiprocessor with most blocks is done soonest."""
    fitting = [tiles for each in _GEMM_TILES if (tiles := _fitting(spec, each)) is not None]
    return min(fitting, key=lambda tiles: _clocks(spec, tiles))


def _fitting(spec: LinearSpec, tiles: GemmTiles) -> GemmTiles | None:
    """Return `tiles` with inputs and stages that fit shared memory; None where two stages do not fit, or registers."""
    has_sums_of_groups = (spec.matrix.group and not spec.matrix.folds) or (spec.is_mxfp8 and spec.has_byte_rows)
    if tiles.mt * tiles.rt > 16 and (spec.matrix.is_wide or has_sums_of_groups):
        return None  # what two bf16 take, or the sums of a group, beside all others
    least_k = WARP * tiles.wk
    for tile_k in dict.fromkeys((tiles.tile_k, least_k)):
        chosen = replace(tiles, tile_k=tile_k)
        stages = min(SHARED_BYTES // _stage_bytes(spec, chosen), 4)
        if stages >= (2 if tile_k == least_k else 3):
            return replace(chosen, stages=stages)
    return None


def _clocks(spec: LinearSpec, tiles: GemmTiles) -> float:
    """Return the clocks that an input takes on the multiprocessor that has most blocks."""
    blocks = ceil_div(spec.outputs, tiles.outputs) * ceil_div(spec.rows, tiles.rows)
    multiplying = tiles.outputs * tiles.rows * (2 if spec.splits else 1) / PRODUCTS_A_CLOCK
    loading = (tiles.outputs * spec.matrix.bits / 8 + tiles.rows * spec.row_bytes) / BYTES_A_CLOCK
    return ceil_div(blocks, MULTIPROCESSORS) * (max(multiplying, loading) + min(multiplying, loading) / 4)


def _stage_bytes(spec: LinearSpec, tiles: GemmTiles) -> int:
    if spec.has_byte_rows:
        rows = tiles.rows * (tiles.tile_k + 16 + tiles.tile_k // 32 * 4)
    else:
        rows = (2 if spec.splits else 1) * tiles.rows * (2 * tiles.tile_k + 16)
    return tile_bytes(spec.matrix, spec.inputs, tiles.outputs, tiles.tile_k) + rows


def gemm_grid(spec: LinearSpec, tiles: GemmTiles) -> tuple[int, int, int]:
    """Return the grid: blocks that share a part of the matrix are neighbours."""
    return (ceil_div(spec.rows, tiles.rows), ceil_div(spec.outputs, tiles.outputs), 1)


def gemm_shared_bytes(spec: LinearSpec, tiles: GemmTiles) -> int:
    """Return the bytes of shared memory of a block: stages, and in their place the sums of warps in the end."""
    return max(tiles.stages * _stage_bytes(spec, tiles), (tiles.wk - 1) * tiles.outputs * tiles.rows * 4)


def gemv_shared_bytes(spec: LinearSpec, tiles: GemvTiles) -> int:
    """Return the bytes of shared memory of a block: stages, and in their place the sums of warps in the end."""
    of_block = block_scale_bytes(spec, tiles)
    stages = _gemv_stages_bytes(spec, tiles, has_scales=not of_block)
    return max(of_block + stages, tiles.wk * tiles.outputs * GEMV_ROWS * 4)


def _gemv_stages_bytes(spec: LinearSpec, tiles: GemvTiles, *, has_scales: bool) -> int:
    stage = tile_bytes(spec.matrix, spec.inputs, 16 * tiles.mt, tiles.tile_k, has_scales=has_scales)
    return tiles.wm * tiles.wk * tiles.stages * stage


def block_scale_bytes(spec: LinearSpec, tiles: GemvTiles) -> int:
    """Return the bytes of scales and zero points of a block's rows where they are copied at once, as a tile's are few
    bytes of each row, and as many requests as codes are (`templates/cuda/include/block_scales.cuh`). 0 where they come
    with each tile."""
    matrix = spec.matrix
    groups = ceil_div(spec.inputs, matrix.group) if matrix.group else 0
    scales = groups * {"SCALE_F32": 4}.get(matrix.scale, 2)
    zeros = ceil_div(groups, 2) if matrix.has_zeros else 0
    strides = round_up(scales, 16) + 16 + (round_up(zeros, 16) + 16 if zeros else 0)
    size_bytes, stages = tiles.outputs * strides, _gemv_stages_bytes(spec, tiles, has_scales=False)
    fits = size_bytes <= MOST_BLOCK_SCALES and size_bytes + stages <= GEMV_SHARED_BYTES
    return size_bytes if groups and not scales % 4 and not zeros % 4 and fits else 0


def tile_bytes(matrix: MatrixFormat, inputs: int, rows: int, tile_k: int, *, has_scales: bool = True) -> int:
    """Return the bytes of shared memory of a tile: `pyc::MatrixTile` (templates/cuda/include/matrix_tiles.cuh)."""
    code_bytes = tile_k * matrix.bits // 8
    if matrix.kind in ("F32", "BF16") or (matrix.has_planes and code_bytes % 32 == 0):
        stride = code_bytes + 16
    elif matrix.has_planes:
        stride = code_bytes
    else:
        stride = (tile_k if tile_k // 32 % 2 else tile_k + 32) * matrix.bits // 8
    groups = ceil_div(tile_k, matrix.group) if matrix.group else 0
    of_row = ceil_div(inputs, matrix.group) if matrix.group else 1
    scale = {"NO_SCALE": 0, "SCALE_F32": 4}.get(matrix.scale, 2)
    if not has_scales:
        return rows * stride
    words = _words(groups * scale, of_row * scale, scale)
    zeros = _words(ceil_div(groups, 2), ceil_div(of_row, 2), 1) if matrix.has_zeros else 0
    return rows * stride + ceil_div(rows * words * 4, 16) * 16 + ceil_div(rows * zeros * 4, 16) * 16


def _words(size_bytes: int, row_bytes: int, unit: int) -> int:
    """Return the words of four bytes that so many bytes of a row lie in, which begin at any multiple of `unit`."""
    if row_bytes % 4 == 0 and (size_bytes % 4 == 0 or size_bytes == unit):
        return ceil_div(size_bytes, 4)
    return size_bytes // 4 + 2 if size_bytes else 0
