"""Runs a function while its weights are on their way: some calls, up to the first that reads what is not there yet.

A library says which call reads each parameter first (`pyc_first_calls`), and runs any stretch of calls
(`pyc_run_calls`). Between two stretches the caller waits in Python, where Ctrl-C and a failed transfer end it. Once all
weights are there, functions run as those of a file do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from pyc.runtime.artifact.arrival import Arrival
from pyc.runtime.errors import ArtifactError


class ArrivingFunction:
    """The stretches of a function between the weights that it waits for."""

    def __init__(
        self, library: ctypes.CDLL, handle: ctypes.c_void_p, symbol: str, inputs: int, weights: Sequence[str]
    ) -> None:
        """`inputs` parameters come before `weights`, and the result behind them. Raises ArtifactError."""
        self._run_calls, self._handle = library.pyc_run_calls, handle
        first = np.empty(inputs + len(weights) + 1, np.int32)
        calls = library.pyc_first_calls(handle, first.ctypes.data, len(first))
        if calls < 0:
            raise ArtifactError(f"{symbol}: the program does not say when it reads its {len(first)} parameters")
        needed: dict[int, list[str]] = {}
        for name, call in zip(weights, first[inputs:-1].tolist(), strict=True):
            needed.setdefault(call, []).append(name)
        starts = sorted(call for call in needed if call < calls)
        self._head = starts[0] if starts else calls
        self._stretches = [
            (start, stop, needed[start]) for start, stop in zip(starts, [*starts[1:], calls], strict=True)
        ]

    def run(self, arrival: Arrival) -> int:
        """Execute the function as `pyc_run` does, each part once its weights are there. Raises as `Arrival.wait`."""
        failed = int(self._run_calls(self._handle, 0, self._head))
        for start, stop, names in self._stretches:
            if failed:
                return failed
            arrival.wait(names)
            failed = int(self._run_calls(self._handle, start, stop))
        return failed
