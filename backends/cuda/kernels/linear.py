"""Linear layers and embeddings: which kernel does each, with how many threads, over which tiles.

Up to GEMV_ROWS rows the bytes of the matrix are the bound (`templates/cuda/include/linear_gemv.cuh`); of more, matrix
instructions are (`linear_gemm.cuh`), and activations are rounded before, once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyc.backends.cuda.kernels.gemv import lower_gemv
from pyc.backends.cuda.kernels.kernel import WARP, Kernel, Lowered, Step
from pyc.backends.cuda.kernels.linear_spec import GATED_ROWS, GEMV_ROWS, LinearSpec
from pyc.backends.cuda.kernels.linear_tiles import (
    GemmTiles,
    gemm_grid,
    gemm_shared_bytes,
    gemm_tiles,
)
from pyc.backends.cuda.kernels.matrix import MatrixFormat
from pyc.backends.cuda.kernels.matrix_source import (
    arguments_of,
    bias_of,
    flag,
    gate_type,
    matrix_source,
    matrix_type,
    parts_of,
    symbol_of,
)
from pyc.backends.cuda.kernels.rounded_rows import (
    AnyRows,
    Float8Rows,
    RoundedRows,
    round_to_float8,
    row_constants,
)
from pyc.backends.cuda.kernels.warpgroup_tiles import (
    TILE_INPUTS,
    float8_shared_bytes,
    float8_tiles,
    suits_float8,
    suits_warpgroups,
    warpgroup_grid,
    warpgroup_shared_bytes,
    warpgroup_tiles,
)
from pyc.backends.cuda.kernels.wrapper import WAIT
from pyc.runtime.host.rounding import ceil_div, round_up

_EMBEDDING_THREADS = 256


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """Rows of a matrix [vocabulary, features] by ids i32 [rows]; zeros for ids that it has not.

    Arrays: "ids", those of `matrix.parts`, and "result" f32 [rows, features].
    """

    rows: int
    vocabulary: int
    features: int
    matrix: MatrixFormat


def rounded_for(spec: LinearSpec, *, has_warpgroups: bool = False) -> AnyRows | None:
    """Return the rows that a GEMM reads, where the kernel that makes the activations can write them: e4m3, or bf16 of
    whole tiles. None for GEMVs, integers, and rows that are rounded to MXFP8 before."""
    if has_warpgroups and suits_float8(spec):
        return Float8Rows()
    by_warpgroups = has_warpgroups and suits_warpgroups(spec)
    if spec.rows <= GEMV_ROWS or spec.is_mxfp8 or (spec.has_byte_rows and not by_warpgroups):
        return None
    tile_inputs = TILE_INPUTS if by_warpgroups else gemm_tiles(spec).tile_k
    return None if spec.inputs % tile_inputs else RoundedRows(spec.matrix.pair_distance, _parts_of(spec))


def _parts_of(spec: LinearSpec) -> int:
    return 2 if spec.splits else 1


def takes_gate(spec: LinearSpec, *, has_warpgroups: bool) -> bool:
    """Whether a layer's epilogue may have a gate: where halves are whole rows of matrix instructions. Of a GEMM, where
    weights are multiplied as they are stored: one that decodes them takes longer for it than the gate alone."""
    has_rows = spec.outputs % (2 * GATED_ROWS) == 0
    if spec.rows <= GEMV_ROWS or spec.matrix.kind == "BF16":
        return has_rows
    return has_rows and (suits_float8(spec) if has_warpgroups else spec.has_byte_rows)


def lower_linear(spec: LinearSpec, *, has_warpgroups: bool = False, is_rounded: bool = False) -> Lowered:
    """Return the launches of a linear layer; with `has_warpgroups` for GPUs whose warpgroups multiply. Where "x"
    `is_rounded`, as `rounded_for` says, it is read as it is."""
    lowered = _lower_linear(spec, has_warpgroups=has_warpgroups)
    if not is_rounded:
        return lowered
    _, multiplying = lowered.steps
    arguments = tuple("x" if name == "rounded" else name for name in multiplying.arguments)
    scratch = {name: size for name, size in lowered.scratch.items() if name != "rounded"}
    return Lowered((replace(multiplying, arguments=arguments),), scratch, lowered.zeroed)


def _lower_linear(spec: LinearSpec, *, has_warpgroups: bool) -> Lowered:
    if spec.rows <= GEMV_ROWS:
        return lower_gemv(spec, has_warpgroups=has_warpgroups)
    if has_warpgroups and suits_float8(spec):
        return _gemm_float8(spec)
    if has_warpgroups and suits_warpgroups(spec):
        return _gemm_warpgroup(spec)
    return _gemm_w8a8(spec) if spec.has_byte_rows else _gemm(spec)


def _gemm(spec: LinearSpec) -> Lowered:
    tiles, parts = gemm_tiles(spec), _parts_of(spec)
    padded = round_up(spec.inputs, tiles.tile_k)
    rounding = Step(_round_rows(spec, padded, parts), ("x", "rounded"))
    constants = (spec.rows, spec.outputs, spec.inputs, parts, *_tile_constants(tiles), flag(spec.matrix.folds))
    grid, shared_bytes = gemm_grid(spec, tiles), gemm_shared_bytes(spec, tiles)
    kernel = _GemmKernel("gemm", constants, tiles.threads, tiles.blocks, grid, shared_bytes)
    multiplying = _multiply_rounded(spec, kernel, ("rounded",))
    return Lowered((rounding, multiplying), {"rounded": parts * spec.rows * padded * 2})


def _gemm_warpgroup(given: LinearSpec) -> Lowered:
    # int8 by blocks of 32 would be multiplied no faster than bf16, which is finer.
    spec = replace(given, activations="bf16") if given.is_integer else given
    tiles, parts = warpgroup_tiles(spec), _parts_of(spec)
    padded = round_up(spec.inputs, TILE_INPUTS)
    division = (tiles.rows, tiles.warpgroups, tiles.sharing, tiles.splits, tiles.stages)
    constants = (spec.rows, spec.outputs, spec.inputs, parts, *division, flag(spec.matrix.folds))
    grid, shared_bytes = warpgroup_grid(spec, tiles), warpgroup_shared_bytes(spec, tiles)
    shared = ("partial", "arrivals") if tiles.splits > 1 else ()
    kernel = _GemmKernel("gemm_warpgroup", constants, tiles.threads, 1, grid, shared_bytes, shared, waits=True)
    steps = (Step(_round_rows(spec, padded, parts), ("x", "rounded")), _multiply_rounded(spec, kernel, ("rounded",)))
    scratch = {"rounded": parts * spec.rows * padded * 2}
    if not shared:
        return Lowered(steps, scratch)
    blocks = grid[0] * grid[1]
    return Lowered(steps, {**scratch, "partial": blocks * tiles.partial_bytes}, {"arrivals": 4 * blocks})


def _gemm_float8(spec: LinearSpec) -> Lowered:
    tiles = float8_tiles(spec)
    constants = (spec.rows, spec.outputs, spec.inputs, tiles.rows, tiles.warpgroups, tiles.stages)
    grid, shared_bytes = warpgroup_grid(spec, tiles), float8_shared_bytes(tiles)
    kernel = _GemmKernel("gemm_float8", constants, tiles.threads, 1, grid, shared_bytes, waits=True)
    steps = (round_to_float8(spec.rows, spec.inputs), _multiply_rounded(spec, kernel, ("rounded",)))
    return Lowered(steps, {"rounded": Float8Rows().size_bytes(spec.rows, spec.inputs)})


def _gemm_w8a8(spec: LinearSpec) -> Lowered:
    tiles = gemm_tiles(spec)
    padded = round_up(spec.inputs, tiles.tile_k)
    threads = WARP * min(ceil_div(padded // 4, WARP), 8)
    quantize = f"quantize_rows{'_mxfp8' if spec.is_mxfp8 else ''}_r{spec.rows}_k{spec.inputs}_p{padded}"
    rounding = matrix_source(
        header="quantize_rows.cuh",
        symbol=quantize,
        bounds=(threads, 1),
        arguments=("x", "rounded", "row_scales"),
        call=f"pyc::quantize_rows<{flag(spec.is_mxfp8)}, {spec.rows}, {spec.inputs}, {padded}, {threads}>"
        "(x, rounded, row_scales)",
    )
    blocks = (ceil_div(padded // 4, threads), spec.rows, 1)
    first = Step(Kernel(quantize, rounding, blocks, threads), ("x", "rounded", "row_scales"))
    constants = (spec.rows, spec.outputs, spec.inputs, *_tile_constants(tiles))
    grid, shared_bytes = gemm_grid(spec, tiles), gemm_shared_bytes(spec, tiles)
    kernel = _GemmKernel("gemm_w8a8", constants, tiles.threads, tiles.blocks, grid, shared_bytes)
    second = _multiply_rounded(spec, kernel, ("rounded", "row_scales"))
    return Lowered((first, second), {"rounded": spec.rows * padded, "row_scales": padded // 32 * spec.rows * 4})


def _tile_constants(tiles: GemmTiles) -> tuple[int, ...]:
    return (tiles.tile_k, tiles.mt, tiles.rt, tiles.wn, tiles.wr, tiles.wk, tiles.stages)


@dataclass(frozen=True, slots=True)
class _GemmKernel:
    """A function of the header named after it, its constants behind the matrix and the epilogue, and how it is
    launched."""

    function: str
    constants: tuple[object, ...]
    threads: int
    blocks: int
    grid: tuple[int, int, int]
    shared_bytes: int
    shared: tuple[str, ...] | None = None
    """Arrays by which blocks share results, behind the result; None: the function has no such parameters."""
    waits: bool = False
    """Whether it waits for earlier launches by itself, when copies of weights are on their way."""


def _multiply_rounded(spec: LinearSpec, gemm: _GemmKernel, activations: tuple[str, ...]) -> Step:
    """Return the launch of a GEMM on activations that a launch before has rounded."""
    symbol = symbol_of(gemm.function, spec)
    arguments = (*activations, *arguments_of(spec)[1:], *(gemm.shared or ()))
    others = () if gemm.shared is None else gemm.shared or ("nullptr", "nullptr")
    passed = ", ".join((*activations, parts_of(spec.matrix), bias_of(spec), "result", *others))
    epilogue = "pyc::PlainSums"
    if spec.epilogue.gate:
        epilogue = f"pyc::GemmEpilogue<{gate_type(spec)}, {row_constants(spec.epilogue.rounded)}>"
    source = matrix_source(
        header=f"linear_{gemm.function}.cuh",
        symbol=symbol,
        matrix=matrix_type(spec, GATED_ROWS),
        bounds=(gemm.threads, gemm.blocks),
        arguments=arguments,
        call=f"pyc::{gemm.function}<{', '.join(map(str, ('M', epilogue, *gemm.constants)))}>({passed})",
        begin=() if gemm.waits else (WAIT,),
    )
    return Step(Kernel(symbol, source, gemm.grid, gemm.threads, gemm.shared_bytes), arguments)


def _round_rows(spec: LinearSpec, padded: int, parts: int) -> Kernel:
    """Return the kernel that rounds activations."""
    distance = spec.matrix.pair_distance
    tail = "_split" if parts == 2 else "_mxfp8" if spec.is_mxfp8 else ""
    symbol = f"round_rows_d{distance}_r{spec.rows}_k{spec.inputs}_p{padded}{tail}"
    threads = WARP * min(ceil_div(padded // 8, WARP), 8)
    source = matrix_source(
        header="round_rows.cuh",
        symbol=symbol,
        bounds=(threads, 1),
        arguments=("x", "rounded"),
        call=f"pyc::round_rows<{flag(spec.is_mxfp8)}, {distance}, {spec.rows}, {spec.inputs}, {padded}, {parts}, "
        f"{threads}>(x, rounded)",
    )
    return Kernel(symbol, source, (ceil_div(padded // 8, threads), spec.rows, 1), threads)


def lower_embedding(spec: EmbeddingSpec) -> Lowered:
    """Return the launch of an embedding."""
    matrix = spec.matrix
    symbol = f"embedding_{matrix.name}_r{spec.rows}_n{spec.vocabulary}_k{spec.features}"
    arguments = ("ids", *matrix.parts, "result")
    source = matrix_source(
        header="embedding.cuh",
        symbol=symbol,
        matrix=matrix.type_name,
        bounds=(_EMBEDDING_THREADS, 1),
        arguments=arguments,
        call=f"pyc::embedding<M, {spec.vocabulary}, {spec.features}, {_EMBEDDING_THREADS}>"
        f"(ids, {parts_of(matrix)}, result)",
    )
    grid = (ceil_div(spec.features, _EMBEDDING_THREADS), spec.rows, 1)
    return Lowered((Step(Kernel(symbol, source, grid, _EMBEDDING_THREADS), arguments),))
