"""Linear layers of up to GEMV_ROWS rows, with their epilogues: the launch of each."""

from __future__ import annotations

from dataclasses import dataclass

from pyc.backends.cuda.kernels.gemv_integers import integer_tiles, suits_integers
from pyc.backends.cuda.kernels.gemv_row import row_tiles, suits_rows
from pyc.backends.cuda.kernels.kernel import Kernel, Lowered, Step
from pyc.backends.cuda.kernels.linear_spec import GATED_ROWS, LinearSpec
from pyc.backends.cuda.kernels.linear_tiles import (
    MULTIPROCESSORS,
    block_scale_bytes,
    gemv_shared_bytes,
    gemv_tiles,
)
from pyc.backends.cuda.kernels.matrix_source import (
    flag,
    gate_type,
    matrix_source,
    matrix_type,
    parts_of,
    symbol_of,
)
from pyc.backends.cuda.kernels.warpgroup_tiles import MOST_SHARED_BYTES
from pyc.backends.cuda.kernels.wrapper import float32_literal
from pyc.runtime.host.rounding import ceil_div

_MOST_SPREAD = 4
"""Blocks of a multiprocessor: of more, some begin when others have ended, wherever that is."""


def squares_of(spec: LinearSpec, *, has_warpgroups: bool = False) -> int:
    """Return to how many numbers a layer that adds adds up the squares of a row's totals."""
    if has_warpgroups and suits_integers(spec):
        return ceil_div(spec.outputs, integer_tiles(spec).outputs)
    tiles = row_tiles(spec) if has_warpgroups and suits_rows(spec) else gemv_tiles(spec)
    return ceil_div(spec.outputs, min(tiles.outputs, 32))


def lower_gemv(spec: LinearSpec, *, has_warpgroups: bool = False) -> Lowered:
    """Return the launch of a layer. With `has_warpgroups` it is divided as an H200 does it fastest: by one of the
    kernels for one row, whose blocks have a multiprocessor each, where that suits, and spread.

    Where launches begin early, on multiprocessors that others have left, those left first would get the most blocks,
    and end last: spread blocks take at least so much shared memory that no multiprocessor gets more than its share.
    """
    if has_warpgroups and suits_integers(spec):
        return lower_gemv_integers(spec)
    if has_warpgroups and suits_rows(spec):
        return lower_gemv_row(spec)
    tiles = gemv_tiles(spec)
    constants = (tiles.tile_k, tiles.mt, tiles.wm, tiles.wk, tiles.stages)
    flags = (
        f"pyc::Activations::{spec.rounding}",
        flag(spec.matrix.has_short_groups),
        flag(bool(block_scale_bytes(spec, tiles))),
    )
    grid = (ceil_div(spec.outputs, tiles.outputs), 1, 1)
    shared = gemv_shared_bytes(spec, tiles)
    each = ceil_div(grid[0], MULTIPROCESSORS)
    if has_warpgroups and each <= _MOST_SPREAD:
        shared = max(shared, MOST_SHARED_BYTES // (each + 1) + 1)
    bounds = (tiles.threads, tiles.blocks)
    function = _Function("gemv", (spec.rows, spec.outputs, spec.inputs, *constants, *flags), GATED_ROWS)
    return _lowered(spec, function, bounds, grid, shared)


def lower_gemv_integers(spec: LinearSpec) -> Lowered:
    """Return the launch of a layer of one row that multiplies integers (`suits_integers`)."""
    tiles = integer_tiles(spec)
    constants = (spec.outputs, spec.inputs, tiles.outputs, tiles.pieces, tiles.warps, tiles.planes)
    function = _Function("gemv_integers", constants, 1)
    return _lowered(spec, function, (tiles.threads, 1), tiles.grid, tiles.shared_bytes)


def lower_gemv_row(spec: LinearSpec) -> Lowered:
    """Return the launch of a layer of one row on all multiprocessors (`suits_rows`)."""
    tiles = row_tiles(spec)
    constants = (spec.outputs, spec.inputs, tiles.tile_k, tiles.mt, tiles.warps, tiles.stages)
    function = _Function("gemv_row", constants, GATED_ROWS)
    bounds = (tiles.threads, 2)  # at most half of the registers, so that blocks of the launch behind it find some
    return _lowered(spec, function, bounds, tiles.grid, tiles.shared_bytes)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of the header named after it, its constants behind the matrix, and how many rows of a gate it takes
    together."""

    name: str
    constants: tuple[object, ...]
    together: int


def _lowered(
    spec: LinearSpec, function: _Function, bounds: tuple[int, int], grid: tuple[int, int, int], shared_bytes: int
) -> Lowered:
    epilogue, matrix = spec.epilogue, spec.matrix
    shape = ", ".join(map(str, (spec.rows, spec.outputs, spec.inputs, epilogue.partials)))
    arrays = {
        "bias": spec.has_bias,
        "squares": epilogue.partials > 0,
        "addend": epilogue.adds,
        "gain": epilogue.has_gain,
        "result": True,
        "scaled": epilogue.has_gain,
        "total_squares": epilogue.adds,
    }
    arguments = ("x", *matrix.parts, *(name for name, is_there in arrays.items() if is_there))
    parts = parts_of(matrix).split(", ")
    passed = (
        *(parts[1], parts[3]),
        *(name if is_there else "nullptr" for name, is_there in arrays.items()),
        float32_literal(epilogue.epsilon),
    )
    symbol = symbol_of(function.name, spec)
    source = matrix_source(
        header=f"linear_{function.name}.cuh",
        symbol=symbol,
        matrix=matrix_type(spec, function.together),
        bounds=bounds,
        arguments=arguments,
        call=f"pyc::{function.name}<{', '.join(map(str, ('M', *function.constants)))}>(x, {', '.join(parts[:3])}, "
        f"pyc::GemvEpilogue<M, {gate_type(spec)}, {shape}>{{{', '.join(passed)}}})",
        begin=(),
    )
    return Lowered((Step(Kernel(symbol, source, grid, bounds[0], shared_bytes), arguments),))
