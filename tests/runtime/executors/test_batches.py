"""runtime/executors/batches.py: which rows of a step run together."""

import numpy as np
import pytest

from pyc.runtime.executors.batches import rows_by_sequence


def rows_of(positions, sequences):
    found = rows_by_sequence(np.array(positions, np.int32), np.array(sequences, np.int32))
    return [batch.tolist() for batch in found]


@pytest.mark.parametrize(
    ("positions", "sequences", "expected"),
    [
        ([4], [0], [[[0]]]),
        ([0, 1, 2], [1, 1, 1], [[[0, 1, 2]]]),
        ([4, 9, 2], [0, 1, 2], [[[0], [1], [2]]]),
        ([4, 9], [0, 2], [[[0]], [[1]]]),
        ([2, 4, 9], [2, 0, 1], [[[1], [2], [0]]]),
        ([4, 7, 8, 3], [0, 1, 1, 2], [[[0]], [[1, 2]], [[3]]]),
        ([8, 7, 3], [1, 1, 2], [[[1, 0]], [[2]]]),
        ([4, -1, -1], [0, 0, 0], [[[0]]]),
    ],
)
def test_rows_are_divided_by_sequence(positions, sequences, expected):
    """Single rows of sequences next to each other run together; padding does not run."""
    assert rows_of(positions, sequences) == expected
