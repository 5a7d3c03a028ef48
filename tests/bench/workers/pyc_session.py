"""A session of pyc whose cache is filled to any length at the price of short prompts."""

import numpy as np

from pyc.runtime.executors.protocol import Executor, FloatArray, InputArray
from pyc.runtime.generation.session import Session
from pyc.runtime.host.aligned import aligned_zeros
from pyc.runtime.model import Model


class PiecewiseExecutor:
    """An executor that, while `piecewise`, computes every piece of a prompt as if its tokens were a sequence's first.

    Keys and values of finite size are then written to the very blocks that the session gave those tokens, and no
    token attends to what is before its piece: so a prompt takes time in proportion to its length. What is decoded
    afterwards reads all of the cache, as after a real prompt; only the values in it are others.
    """

    sampler = None

    def __init__(self, executor: Executor, block_tokens: int) -> None:
        self._executor, self._block_tokens = executor, block_tokens
        self._table: InputArray | None = None
        self.isa, self.threads, self.piecewise, self.is_arriving = executor.isa, executor.threads, False, False

    def functions(self, name: str) -> tuple[int, ...]:
        """The executor's."""
        return self._executor.functions(name)

    def check_file(self) -> None:
        """The executor's."""
        self._executor.check_file()

    def stop_arriving(self) -> None:
        """The executor's."""
        self._executor.stop_arriving()

    def run(self, name: str, bucket: int, inputs: dict[str, InputArray]) -> FloatArray:
        """The executor's, with positions and block table moved while `piecewise`."""
        if not self.piecewise or name == "logits":
            return self._executor.run(name, bucket, inputs)
        positions, table = inputs["positions"], inputs["block_table"]
        first = int(positions[0])
        assert first % self._block_tokens == 0, f"a piece begins at {first}, inside a block"
        if self._table is None:
            self._table = aligned_zeros(table.shape, np.int32)
        width = table.shape[1] - first // self._block_tokens
        self._table[:, :width] = table[:, first // self._block_tokens :]
        moved = aligned_zeros(positions.shape, np.int32)
        moved[:] = np.where(positions < 0, positions, positions - first)
        return self._executor.run(name, bucket, {**inputs, "positions": moved, "block_table": self._table})


class FillingSession:
    """A model's sequences, in a session of their own."""

    def __init__(self, model: Model, context: int) -> None:
        assert model.info.kv_cache is not None
        self._executor = PiecewiseExecutor(model.executor, model.info.kv_cache.block_tokens)
        blocks = model.info.max_sequences * -(-context // model.info.kv_cache.block_tokens)
        self.session = Session(self._executor, model.info, kv_blocks=blocks, context=context)

    def fill(self, ids: list[int], slot: int) -> None:
        """Appends `ids` to the slot without attention between pieces; the slot must end at the end of a block."""
        self._executor.piecewise = True
        try:
            self.session.prefill(ids, slot)
        finally:
            self._executor.piecewise = False
