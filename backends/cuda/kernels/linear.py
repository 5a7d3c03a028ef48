"""Linear layers and embeddings: which kernel does each, with how many threads, over which tiles.

Up to GEMV_ROWS rows the bytes of the matrix are the bound (`templates/cuda/include/linear_gemv.cuh`); of more, matrix
instructions are (`linear_gemm.cuh`), and activations are rounded before, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyc.backends.cuda.kernels.kernel import WARP, Kernel, Lowered, Step
from pyc.backends.cuda.kernels.matrix import MatrixFormat
from pyc.compiler.schemes import Activations
from pyc.runtime.host.rounding import ceil_div, round_up
from pyc.templates.rendering import render

GEMV_ROWS = 8
"""Rows of activations that one matrix instruction takes."""

RESIDENT_THREADS = 512
"""Threads of a multiprocessor whose registers, 128 each, are enough to keep its memory busy."""

MULTIPROCESSORS = 132
"""Of the GPU that tiles are chosen for: an H100 or H200."""

_POINTERS = {
    "x": "const float* __restrict__ x",
    "ids": "const int* __restrict__ ids",
    "weight": "const unsigned char* __restrict__ codes",
    "weight.codes": "const unsigned char* __restrict__ codes",
    "weight.scales": "const unsigned char* __restrict__ scales",
    "weight.zeros": "const unsigned char* __restrict__ zeros",
    "weight.factors": "const float* __restrict__ factors",
    "bias": "const float* __restrict__ bias",
    "result": "float* __restrict__ result",
    "rounded": "unsigned char* __restrict__ rounded",
}
_EMBEDDING_THREADS = 256


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """x f32 [rows, inputs] times the transpose of a matrix [outputs, inputs], plus a bias f32 [outputs] if it has one.

    Arrays: "x", those of `matrix.parts`, "bias", and "result" f32 [rows, outputs]. `activations`: "bf16" rounds x to
    bf16; otherwise x is two bf16, whose sum errs by 2^-18 of it at most.
    """

    rows: int
    outputs: int
    inputs: int
    matrix: MatrixFormat
    has_bias: bool = False
    activations: Activations = "f32"

    @property
    def splits(self) -> bool:
        """Whether activations are two bf16."""
        return self.activations != "bf16"


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """Rows of a matrix [vocabulary, features] by ids i32 [rows]; zeros for ids that it has not.

    Arrays: "ids", those of `matrix.parts`, and "result" f32 [rows, features].
    """

    rows: int
    vocabulary: int
    features: int
    matrix: MatrixFormat


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

SHARED_BYTES = 99 << 10
"""Shared memory that a block may have on every GPU."""


def lower_linear(spec: LinearSpec) -> Lowered:
    """Return the launches of a linear layer."""
    return _gemv(spec) if spec.rows <= GEMV_ROWS else _gemm(spec)


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
    stages = {4: 6 if is_alone and mt > 1 else 4, 8: 4}.get(spec.matrix.bits, 3)
    return GemvTiles(tile_k, mt, wm, wk, stages)


def _gemv(spec: LinearSpec) -> Lowered:
    tiles, matrix = gemv_tiles(spec), spec.matrix
    shape = (spec.rows, spec.outputs, spec.inputs, tiles.tile_k, tiles.mt, tiles.wm, tiles.wk, tiles.stages)
    constants = ", ".join(map(str, ("M", *shape)))
    symbol = _symbol("gemv", spec)
    flags = f"{_flag(spec.splits)}, {_flag(matrix.has_short_groups)}"
    source = _source(
        header="linear_gemv.cuh",
        symbol=symbol,
        matrix=matrix,
        bounds=(tiles.threads, tiles.blocks),
        arguments=_arguments(spec),
        call=f"pyc::gemv<{constants}, {flags}>(x, {_parts(matrix)}, {'bias' if spec.has_bias else 'nullptr'}, result)",
    )
    grid = (ceil_div(spec.outputs, tiles.outputs), 1, 1)
    stage_bytes = tiles.wm * tiles.wk * tiles.stages * tile_bytes(matrix, spec.inputs, 16 * tiles.mt, tiles.tile_k)
    shared = max(stage_bytes, tiles.wk * tiles.outputs * GEMV_ROWS * 4)
    return Lowered((Step(Kernel(symbol, source, grid, tiles.threads, shared), _arguments(spec)),))


def gemm_tiles(spec: LinearSpec) -> GemmTiles:
    """Return how a GEMM is divided: so that the multiprocessor with most blocks is done soonest."""
    fitting = [tiles for each in _GEMM_TILES if (tiles := _fitting(spec, each)) is not None]
    return min(fitting, key=lambda tiles: _clocks(spec, tiles))


def _fitting(spec: LinearSpec, tiles: GemmTiles) -> GemmTiles | None:
    """Return `tiles` with inputs and stages that fit shared memory; None where two stages do not fit, or registers."""
    if tiles.mt * tiles.rt > 16 and (spec.matrix.is_wide or (spec.matrix.group and not spec.matrix.folds)):
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
    parts = 2 if spec.splits else 1
    blocks = ceil_div(spec.outputs, tiles.outputs) * ceil_div(spec.rows, tiles.rows)
    multiplying = tiles.outputs * tiles.rows * parts / PRODUCTS_A_CLOCK
    loading = (tiles.outputs * spec.matrix.bits / 8 + tiles.rows * 2 * parts) / BYTES_A_CLOCK
    return ceil_div(blocks, MULTIPROCESSORS) * (max(multiplying, loading) + min(multiplying, loading) / 4)


def _stage_bytes(spec: LinearSpec, tiles: GemmTiles) -> int:
    rows = (2 if spec.splits else 1) * tiles.rows * (2 * tiles.tile_k + 16)
    return tile_bytes(spec.matrix, spec.inputs, tiles.outputs, tiles.tile_k) + rows


def _gemm(spec: LinearSpec) -> Lowered:
    tiles, matrix, parts = gemm_tiles(spec), spec.matrix, 2 if spec.splits else 1
    padded = round_up(spec.inputs, tiles.tile_k)
    rounding = Step(_round_rows(spec, padded, parts), ("x", "rounded"))
    shape = (spec.rows, spec.outputs, spec.inputs, parts, tiles.tile_k)
    warps = (tiles.mt, tiles.rt, tiles.wn, tiles.wr, tiles.wk, tiles.stages)
    constants = ", ".join(map(str, ("M", *shape, *warps)))
    symbol = _symbol("gemm", spec)
    arguments = ("rounded", *_arguments(spec)[1:])
    source = _source(
        header="linear_gemm.cuh",
        symbol=symbol,
        matrix=matrix,
        bounds=(tiles.threads, tiles.blocks),
        arguments=arguments,
        call=f"pyc::gemm<{constants}, {_flag(matrix.folds)}>"
        f"(rounded, {_parts(matrix)}, {'bias' if spec.has_bias else 'nullptr'}, result)",
    )
    grid = (ceil_div(spec.rows, tiles.rows), ceil_div(spec.outputs, tiles.outputs), 1)
    sums = (tiles.wk - 1) * tiles.outputs * tiles.rows * 4
    shared = max(tiles.stages * _stage_bytes(spec, tiles), sums)
    multiplying = Step(Kernel(symbol, source, grid, tiles.threads, shared), arguments)
    return Lowered((rounding, multiplying), {"rounded": parts * spec.rows * padded * 2})


def _round_rows(spec: LinearSpec, padded: int, parts: int) -> Kernel:
    """Return the kernel that rounds activations."""
    distance = spec.matrix.pair_distance
    symbol = f"round_rows_d{distance}_r{spec.rows}_k{spec.inputs}_p{padded}" + ("_split" if parts == 2 else "")
    threads = WARP * min(ceil_div(padded // 8, WARP), 8)
    source = _source(
        header="round_rows.cuh",
        symbol=symbol,
        matrix=None,
        bounds=(threads, 1),
        arguments=("x", "rounded"),
        call=f"pyc::round_rows<{distance}, {spec.rows}, {spec.inputs}, {padded}, {parts}, {threads}>(x, rounded)",
    )
    return Kernel(symbol, source, (ceil_div(padded // 8, threads), spec.rows, 1), threads)


def tile_bytes(matrix: MatrixFormat, inputs: int, rows: int, tile_k: int) -> int:
    """Return the bytes of shared memory of a tile: `pyc::MatrixTile` (templates/cuda/include/matrix_tiles.cuh)."""
    code_bytes = tile_k * matrix.bits // 8
    if matrix.kind in ("F32", "BF16"):
        stride = code_bytes + 16
    else:
        stride = (tile_k if tile_k // 32 % 2 else tile_k + 32) * matrix.bits // 8
    groups = ceil_div(tile_k, matrix.group) if matrix.group else 0
    of_row = ceil_div(inputs, matrix.group) if matrix.group else 1
    scale = {"NO_SCALE": 0, "SCALE_F32": 4}.get(matrix.scale, 2)
    words = _words(groups * scale, of_row * scale)
    zeros = _words(ceil_div(groups, 2), ceil_div(of_row, 2)) if matrix.has_zeros else 0
    return rows * stride + ceil_div(rows * words * 4, 16) * 16 + ceil_div(rows * zeros * 4, 16) * 16


def _words(size_bytes: int, row_bytes: int) -> int:
    """Return the words of four bytes that so many bytes of a row lie in."""
    if not size_bytes:
        return 0
    return size_bytes // 4 if size_bytes % 4 == 0 and row_bytes % 4 == 0 else size_bytes // 4 + 2


def lower_embedding(spec: EmbeddingSpec) -> Lowered:
    """Return the launch of an embedding."""
    matrix = spec.matrix
    symbol = f"embedding_{matrix.name}_r{spec.rows}_n{spec.vocabulary}_k{spec.features}"
    arguments = ("ids", *matrix.parts, "result")
    source = _source(
        header="embedding.cuh",
        symbol=symbol,
        matrix=matrix,
        bounds=(_EMBEDDING_THREADS, 1),
        arguments=arguments,
        call=f"pyc::embedding<M, {spec.vocabulary}, {spec.features}, {_EMBEDDING_THREADS}>"
        f"(ids, {_parts(matrix)}, result)",
    )
    grid = (ceil_div(spec.features, _EMBEDDING_THREADS), spec.rows, 1)
    return Lowered((Step(Kernel(symbol, source, grid, _EMBEDDING_THREADS), arguments),))


def _source(
    *,
    header: str,
    symbol: str,
    matrix: MatrixFormat | None,
    bounds: tuple[int, int],
    arguments: tuple[str, ...],
    call: str,
) -> str:
    return render(
        "cuda/matrix.cu.j2",
        {
            "header": header,
            "symbol": symbol,
            "matrix": matrix.constants if matrix else "",
            "bounds": ", ".join(map(str, bounds)),
            "parameters": ", ".join(_POINTERS[name] for name in arguments),
            "call": call,
        },
    )


def _arguments(spec: LinearSpec) -> tuple[str, ...]:
    return ("x", *spec.matrix.parts, *(("bias",) if spec.has_bias else ()), "result")


def _parts(matrix: MatrixFormat) -> str:
    """Return the arguments of the functions that take any matrix."""
    names = {"scales": matrix.scale != "NO_SCALE", "zeros": matrix.has_zeros, "factors": matrix.has_factors}
    return ", ".join(("codes", *(name if is_there else "nullptr" for name, is_there in names.items())))


def _symbol(kind: str, spec: LinearSpec) -> str:
    tail = ("" if spec.splits else "_x_bf16") + ("_bias" if spec.has_bias else "")
    return f"{kind}_{spec.matrix.name}_r{spec.rows}_n{spec.outputs}_k{spec.inputs}{tail}"


def _flag(value: bool) -> str:
    return "true" if value else "false"
