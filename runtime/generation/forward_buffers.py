"""The input arrays of compiled functions, which stay where they are from one run to the next."""

import numpy as np

from pyc.runtime.executors.protocol import InputArray, IntArray
from pyc.runtime.host.aligned import aligned_zeros


class ForwardBuffers:
    """The persistent input arrays of one `forward` bucket."""

    def __init__(self, bucket: int, block_table: IntArray) -> None:
        self.token_ids = aligned_zeros((bucket,), np.int32)
        self.positions = aligned_zeros((bucket,), np.int32)
        self.sequences = aligned_zeros((bucket,), np.int32)
        self.row = aligned_zeros((1,), np.int32)
        self.inputs: dict[str, InputArray] = {
            "token_ids": self.token_ids,
            "positions": self.positions,
            "sequences": self.sequences,
            "block_table": block_table,
            "row": self.row,
        }

    def clear_padding(self, rows: int) -> None:
        """Marks the rows from `rows` on as padding."""
        self.token_ids[rows:] = 0
        self.positions[rows:] = -1
        self.sequences[rows:] = 0
