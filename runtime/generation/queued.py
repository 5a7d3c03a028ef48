"""A sequence that waits for a slot of a session, and whose prompt is then fed in pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import PycError
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.slots import SlotOwner


class Queued(ABC):
    """What the scheduler knows of a sequence before any token is chosen; its lock guards it.

    It holds a slot of the session as long as `owner` is there, which one that is finished, closed or abandoned has no
    more.
    """

    def __init__(self, prompt: Sequence[int], *, reuse_prefix: bool) -> None:
        self.prompt = prompt
        self.reuse_prefix = reuse_prefix
        self.ids: NDArray[np.int64] = np.empty(0, np.int64)
        """The prompt, once the session has checked it."""
        self.error: PycError | None = None
        self.owner: SlotOwner | None = SlotOwner()
        self.slot = -1
        self.chunks: dict[int, int] = {}
        """The bucket of each piece that the prompt is fed in, by the position of its first token."""
        self.tell: Callable[[Queued], None] | None = None
        """Called whenever there is something to take, and at the end, by whichever thread made it."""

    @property
    def is_open(self) -> bool:
        """Whether more is to come, beside what is ready."""
        return self.owner is not None

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether there is something to take."""

    @property
    def is_served(self) -> bool:
        """Whether there is something to take, or nothing to wait for."""
        return self.is_ready or self.owner is None

    @abstractmethod
    def feed(self, session: Session, start: int, stop: int, bucket: int) -> None:
        """Run the tokens from `start` to `stop` of the prompt, one piece, in `bucket` rows, and behind the last piece
        take what is wanted. Raises as `Session.prefill_chunk` does, and is then called again with the same."""

    def raise_error(self) -> None:
        """Raise what ended it, unless something is there to take before."""
        if self.error is not None and not self.is_ready:
            raise self.error

    def fail(self, error: PycError) -> None:
        """Ends it with an error, which whoever waits gets after what is ready."""
        self.error = error
        self.close()

    def close(self) -> None:
        """Ends it: its slot is free from now on. Any thread may do so, at any time."""
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.has_left = True
        self.told()

    def told(self) -> None:
        """Tell whoever waits that it is served."""
        if self.tell is not None:
            self.tell(self)
