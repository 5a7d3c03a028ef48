"""How a linear layer of one row is divided where it multiplies integers (`linear_gemv_integers.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass

from pyc.backends.cuda.kernels.kernel import WARP
from pyc.backends.cuda.kernels.linear_spec import LinearSpec
from pyc.backends.cuda.kernels.linear_tiles import GEMV_SHARED_BYTES, MULTIPROCESSORS
from pyc.runtime.host.rounding import ceil_div

_KINDS = frozenset({"INT8", "INT4", "LOOKUP5", "LOOKUP4", "LOOKUP3", "LOOKUP2"})
_BLOCK = 32
"""Inputs that have a scale."""
_LEAST_WARPS, _MOST_WARPS = 4, 16
_LOADS = 128
"""Pieces of a warp's width that a multiprocessor has on their way: 64 KB of four bits."""


@dataclass(frozen=True, slots=True)
class IntegerTiles:
    """What a block does: `warps` of `outputs` at a time, of each of which a thread loads `pieces` at once. Inputs are
    integers of `planes` bytes."""

    outputs: int
    pieces: int
    planes: int
    warps: int
    grid: tuple[int, int, int]
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps


def suits_integers(spec: LinearSpec) -> bool:
    """Whether a layer can multiply integers: one row, whole blocks, a scale for each piece at least, and activations
    that need not be finer than bf16."""
    matrix = spec.matrix
    return (
        spec.rows == 1
        and matrix.kind in _KINDS
        and spec.inputs % _BLOCK == 0
        and matrix.group % _piece(spec) == 0
        and spec.rounding in ("INT8", "BF16")
        and _shared_bytes(spec) <= GEMV_SHARED_BYTES
    )


def integer_tiles(spec: LinearSpec) -> IntegerTiles:
    """Return how a layer is divided: so that all warps have outputs, and those few that share what they read of x."""
    of_row, loads = ceil_div(spec.inputs // _piece(spec), WARP), _LOADS // _MOST_WARPS
    if spec.matrix.bits == 5:
        loads //= 2  # five registers a piece
    outputs, least = min(max(loads // min(of_row, 4), 2), 4), 2 if spec.epilogue.gate else 1
    while outputs > least and spec.outputs < 0.9 * MULTIPROCESSORS * _MOST_WARPS * outputs:
        outputs //= 2
    pieces = min(of_row, 4, loads // outputs)
    groups, warps = ceil_div(spec.outputs, outputs), _LEAST_WARPS
    while warps < _MOST_WARPS and groups > warps * MULTIPROCESSORS:
        warps *= 2
    grid = (min(MULTIPROCESSORS, ceil_div(groups, warps)), 1, 1)
    return IntegerTiles(outputs, pieces, _planes(spec), warps, grid, _shared_bytes(spec))


def _piece(spec: LinearSpec) -> int:
    """Codes that a thread multiplies at once."""
    return 16 if spec.matrix.bits == 8 else _BLOCK


def _planes(spec: LinearSpec) -> int:
    return 1 if spec.is_integer else 2


def _shared_bytes(spec: LinearSpec) -> int:
    return _planes(spec) * spec.inputs + spec.inputs // _BLOCK * 4 + spec.inputs // _piece(spec) * 4
