"""A request for the logits behind every token of a sequence, which waits for its turn as generations do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import FloatArray
from pyc.runtime.generation.queued import Queued
from pyc.runtime.generation.session import Session


class LogitsRequest(Queued):
    """One sequence, and what becomes of it: `hidden` f32[tokens, hidden] as its pieces come, then `logits`."""

    def __init__(self, ids: NDArray[np.int64], *, context: int, hidden_size: int) -> None:
        """`ids` were checked. Raises RunError when they are more than `context` tokens."""
        if len(ids) > context:
            raise RunError(
                f"context: {len(ids)} tokens exceed this model's context of {context}; give fewer at a time, or build "
                "or load with a larger context"
            )
        super().__init__(ids.tolist(), reuse_prefix=False)
        self.hidden: FloatArray = np.empty((len(ids), hidden_size), np.float32)
        self.logits: FloatArray | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the logits are there."""
        return self.logits is not None

    def feed(self, session: Session, start: int, stop: int, bucket: int) -> None:
        """Run a piece, and behind the last the head on all rows; its result is copied. Memory that is lacking for that
        ends this request alone, whichever thread runs the piece."""
        self.hidden[start:stop] = session.prefill_chunk(self.ids[start:stop], self.slot, bucket, keep="all")
        if stop < len(self.prompt):
            return
        size_bytes = 8 * stop * session.vocab_size
        try:
            self.logits = np.array(session.logits(self.hidden), dtype=np.float32)
        except MemoryError:
            self.fail(
                RunError(f"logits: no memory for those of {stop} tokens, {size_bytes:,} bytes; give fewer at a time")
            )
        self.close()
