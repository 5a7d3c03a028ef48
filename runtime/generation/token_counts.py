"""Which tokens a sequence has, and how often: what penalties go by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.executors.protocol import IN_PROMPT, IntArray
from pyc.runtime.generation.candidates import IdArray


class TokenCounts:
    """Counts the tokens of an output behind a prompt."""

    def __init__(self, vocab_size: int, prompt: Sequence[int]) -> None:
        """Ids are below `vocab_size`."""
        self.tokens = 0
        """Tokens of the output."""
        # Distinct ids of prompt and output; np.unique would import numpy.ma, 7 ms before the first token.
        self.seen: IdArray = np.array(sorted(set(prompt)), dtype=np.int64)
        self.output: IdArray = np.zeros(0, dtype=np.int64)
        """Distinct ids of the output."""
        self._prompt = self.seen
        self._counts = np.zeros(vocab_size, dtype=np.int32)

    def add(self, token: int) -> None:
        """Count a token of the output."""
        if self._counts[token] == 0:
            self.output = np.append(self.output, token)
            if token not in self.seen:
                self.seen = np.append(self.seen, token)
        self._counts[token] += 1
        self.tokens += 1

    def of_output(self) -> NDArray[np.int32]:
        """Return how often the output has each of `output`."""
        return self._counts[self.output]

    def array(self) -> IntArray:
        """Return i32 [vocab]: how often the output has each token, and IN_PROMPT more where the prompt has it."""
        counts = self._counts.copy()
        counts[self._prompt] += IN_PROMPT
        return counts
