"""Divides the rows of a step by sequence, for programs that take a batch of sequences with equally many rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.executors.protocol import IntArray


def rows_by_sequence(positions: IntArray, sequences: IntArray) -> list[NDArray[np.int64]]:
    """Return the rows of each run, [sequences, rows of one]: sequences of one row that follow each other together,
    others alone. Rows of a sequence are taken in the order of their positions."""
    used = np.flatnonzero(positions >= 0)
    order = used[np.lexsort((positions[used], sequences[used]))]
    numbers = sequences[order]
    groups = np.split(order, np.flatnonzero(np.diff(numbers)) + 1)
    batches: list[list[NDArray[np.int64]]] = []
    previous = -2
    for rows in groups:
        number = int(sequences[rows[0]])
        if len(rows) == 1 and batches and len(batches[-1][0]) == 1 and number == previous + 1:
            batches[-1].append(rows)
        else:
            batches.append([rows])
        previous = number
    return [np.stack(batch) for batch in batches]
