"""What the matrices of an artifact stand for, as its program for CPUs has them: rows of numbers out of panels."""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.cpu.packing import unpack_rows
from pyc.compiler.scales import Bytes, Floats
from pyc.compiler.schemes import Scheme
from pyc.runtime.host.rounding import ceil_div

ROWS_TOGETHER = LANES
"""Rows of a panel, which are read together."""


class Rows(Protocol):
    """What is asked of an array whose rows may yet have to be read."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of its numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    def __getitem__(self, rows: slice, /) -> NDArray[np.generic]:
        """Some of its rows."""


def is_stored_as(array: Rows, scheme: Scheme, rows: int, columns: int) -> bool:
    """Return whether an array has the form of a matrix [rows, columns] of a scheme: panels, or rows that are not
    packed."""
    if array.dtype == np.uint8:
        return array.shape == (ceil_div(rows, LANES), panel_layout(scheme, columns).panel_bytes)
    return array.shape == (rows, columns)


def stored_values(array: Rows, scheme: Scheme, columns: int, start: int, stop: int) -> Floats:
    """Return rows [start, stop) of a matrix that `is_stored_as` so, f32 [stop - start, columns]."""
    if array.dtype == np.uint8:
        first, last = start // LANES, ceil_div(stop, LANES)
        panels = np.ascontiguousarray(cast("Bytes", array[first:last]))
        rows = unpack_rows(panels, panel_layout(scheme, columns), (last - first) * LANES)
        return rows[start - first * LANES : stop - first * LANES]
    given = array[start:stop]
    if given.dtype == np.uint16:  # bf16
        return (given.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return given.astype(np.float32)
