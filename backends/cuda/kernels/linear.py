"""Linear layers and embeddings: which kernel does each, with how many threads, over which tiles.

Up to GEMV_ROWS rows the bytes of the matrix are the bound (`templates/cuda/include/linear_gemv.cuh`); of more, matrix
instructions are (`linear_gemm.cuh`), and activations are rounded before, once.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyc.backends.cuda.kernels.kernel import WARP, Kernel, Lowered, Step
from pyc.backends.cuda.kernels.linear_spec import GEMV_ROWS, LinearSpec
from pyc.backends.cuda.kernels.linear_tiles import (
    GemmTiles,
    gemm_grid,
    gemm_shared_bytes,
    gemm_tiles,
    gemv_shared_bytes,
    gemv_tiles,
)
from pyc.backends.cuda.kernels.matrix import MatrixFormat
from pyc.backends.cuda.kernels.wrapper import DEPENDENT_LAUNCH, LET_OTHERS_BEGIN, SHARED_ARRAY, WAIT
from pyc.runtime.host.rounding import ceil_div, round_up
from pyc.templates.rendering import render

__all__ = ["EmbeddingSpec", "LinearSpec", "lower_embedding", "lower_linear"]

_POINTERS = {
    "x": f"const float* {SHARED_ARRAY} x",
    "ids": f"const int* {SHARED_ARRAY} ids",
    "weight": "const unsigned char* __restrict__ codes",
    "weight.codes": "const unsigned char* __restrict__ codes",
    "weight.scales": "const unsigned char* __restrict__ scales",
    "weight.zeros": "const unsigned char* __restrict__ zeros",
    "weight.factors": "const float* __restrict__ factors",
    "bias": "const float* __restrict__ bias",
    "result": f"float* {SHARED_ARRAY} result",
    "rounded": f"unsigned char* {SHARED_ARRAY} rounded",
    "row_scales": f"float* {SHARED_ARRAY} row_scales",
}
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


def lower_linear(spec: LinearSpec) -> Lowered:
    """Return the launches of a linear layer."""
    if spec.rows <= GEMV_ROWS:
        return _gemv(spec)
    return _gemm_w8a8(spec) if spec.has_byte_rows else _gemm(spec)


def _gemv(spec: LinearSpec) -> Lowered:
    tiles, matrix = gemv_tiles(spec), spec.matrix
    shape = (spec.rows, spec.outputs, spec.inputs, tiles.tile_k, tiles.mt, tiles.wm, tiles.wk, tiles.stages)
    constants = ", ".join(map(str, ("M", *shape)))
    symbol = _symbol("gemv", spec)
    flags = f"pyc::Activations::{spec.rounding}, {_flag(matrix.has_short_groups)}"
    source = _source(
        header="linear_gemv.cuh",
        symbol=symbol,
        matrix=matrix,
        bounds=(tiles.threads, tiles.blocks),
        arguments=_arguments(spec),
        call=f"pyc::gemv<{constants}, {flags}>(x, {_parts(matrix)}, {_bias(spec)}, result)",
        waits=True,
    )
    grid = (ceil_div(spec.outputs, tiles.outputs), 1, 1)
    shared = gemv_shared_bytes(spec, tiles)
    return Lowered((Step(Kernel(symbol, source, grid, tiles.threads, shared), _arguments(spec)),))


def _gemm(spec: LinearSpec) -> Lowered:
    tiles, parts = gemm_tiles(spec), 2 if spec.splits else 1
    padded = round_up(spec.inputs, tiles.tile_k)
    rounding = Step(_round_rows(spec, padded, parts), ("x", "rounded"))
    constants = (spec.rows, spec.outputs, spec.inputs, parts, *_tile_constants(tiles), _flag(spec.matrix.folds))
    multiplying = _multiply_rounded(spec, tiles, "gemm", constants, ("rounded",))
    return Lowered((rounding, multiplying), {"rounded": parts * spec.rows * padded * 2})


def _gemm_w8a8(spec: LinearSpec) -> Lowered:
    tiles = gemm_tiles(spec)
    padded = round_up(spec.inputs, tiles.tile_k)
    threads = WARP * min(ceil_div(padded // 4, WARP), 8)
    quantize = f"quantize_rows{'_mxfp8' if spec.is_mxfp8 else ''}_r{spec.rows}_k{spec.inputs}_p{padded}"
    rounding = _source(
        header="quantize_rows.cuh",
        symbol=quantize,
        matrix=None,
        bounds=(threads, 1),
        arguments=("x", "rounded", "row_scales"),
        call=f"pyc::quantize_rows<{_flag(spec.is_mxfp8)}, {spec.rows}, {spec.inputs}, {padded}, {threads}>"
        "(x, rounded, row_scales)",
    )
    grid = (ceil_div(padded // 4, threads), spec.rows, 1)
    first = Step(Kernel(quantize, rounding, grid, threads), ("x", "rounded", "row_scales"))
    constants = (spec.rows, spec.outputs, spec.inputs, *_tile_constants(tiles))
    second = _multiply_rounded(spec, tiles, "gemm_w8a8", constants, ("rounded", "row_scales"))
    return Lowered((first, second), {"rounded": spec.rows * padded, "row_scales": padded // 32 * spec.rows * 4})


def _tile_constants(tiles: GemmTiles) -> tuple[int, ...]:
    return (tiles.tile_k, tiles.mt, tiles.rt, tiles.wn, tiles.wr, tiles.wk, tiles.stages)


def _multiply_rounded(
    spec: LinearSpec, tiles: GemmTiles, function: str, constants: tuple[object, ...], activations: tuple[str, ...]
) -> Step:
    """Return the launch of `function` of the header named after it, on activations that a launch before has rounded."""
    symbol = _symbol("gemm", spec)
    arguments = (*activations, *_arguments(spec)[1:])
    passed = ", ".join((*activations, _parts(spec.matrix), _bias(spec), "result"))
    source = _source(
        header=f"linear_{function}.cuh",
        symbol=symbol,
        matrix=spec.matrix,
        bounds=(tiles.threads, tiles.blocks),
        arguments=arguments,
        call=f"pyc::{function}<{', '.join(map(str, ('M', *constants)))}>({passed})",
    )
    kernel = Kernel(symbol, source, gemm_grid(spec, tiles), tiles.threads, gemm_shared_bytes(spec, tiles))
    return Step(kernel, arguments)


def _round_rows(spec: LinearSpec, padded: int, parts: int) -> Kernel:
    """Return the kernel that rounds activations."""
    distance = spec.matrix.pair_distance
    tail = "_split" if parts == 2 else "_mxfp8" if spec.is_mxfp8 else ""
    symbol = f"round_rows_d{distance}_r{spec.rows}_k{spec.inputs}_p{padded}{tail}"
    threads = WARP * min(ceil_div(padded // 8, WARP), 8)
    source = _source(
        header="round_rows.cuh",
        symbol=symbol,
        matrix=None,
        bounds=(threads, 1),
        arguments=("x", "rounded"),
        call=f"pyc::round_rows<{_flag(spec.is_mxfp8)}, {distance}, {spec.rows}, {spec.inputs}, {padded}, {parts}, "
        f"{threads}>(x, rounded)",
    )
    return Kernel(symbol, source, (ceil_div(padded // 8, threads), spec.rows, 1), threads)


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
    waits: bool = False,
) -> str:
    """Return a kernel that makes `call`; `waits` says that this waits for earlier launches itself."""
    return render(
        "cuda/matrix.cu.j2",
        {
            "headers": (DEPENDENT_LAUNCH, header),
            "begin": (LET_OTHERS_BEGIN,) if waits else (LET_OTHERS_BEGIN, WAIT),
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


def _bias(spec: LinearSpec) -> str:
    return "bias" if spec.has_bias else "nullptr"


def _symbol(kind: str, spec: LinearSpec) -> str:
    tail = {"F32": "", "INT8": "_x_int8", "MXFP8": "_x_mxfp8", "BF16": "_x_bf16"}[spec.rounding]
    tail += ("_bias" if spec.has_bias else "")
    return f"{kind}_{spec.matrix.name}_r{spec.rows}_n{spec.outputs}_k{spec.inputs}{tail}"


def _flag(value: bool) -> str:
    return "true" if value else "false"
