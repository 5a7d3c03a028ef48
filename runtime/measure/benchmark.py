"""Measures a loaded model: time to the first token, prefill and decode speed, sentences a second.

Prompts are token ids in a fixed pseudo-random order, decoding is greedy and does not stop at an
end-of-sequence token, so every repeat does the same work. One run before warms up the caches and is not
counted.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import RowSampling
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.slots import SlotOwner
from pyc.runtime.model import Model

WARM_UP_TOKENS = 4
BINS_A_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class Spread:
    """Median over the repeats, with the least and the most, and the standard deviation (0 of one)."""

    median: float
    least: float
    most: float
    deviation: float


@dataclass(frozen=True, slots=True)
class PromptTimes:
    """Seconds of one prompt: `prefill_s` until its last hidden state, `first_s` until the token after it."""

    prefill_s: float
    first_s: float


def spread(values: Sequence[float]) -> Spread:
    """Median, least, most and standard deviation of at least one value."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Spread(float(np.median(values)), min(values), max(values), deviation)


def histogram(values: Sequence[float]) -> tuple[tuple[float, int], ...]:
    """How many of at least one positive value lie in each bin: the bin's upper edge and the count, ascending.

    Edges are powers of 2^(1/8), so a bin is 9 % wide; the first and the last bin are not empty.
    """
    numbers = [math.ceil(math.log2(value) * BINS_A_DOUBLING) for value in values]
    counts = Counter(numbers)
    return tuple((2 ** (number / BINS_A_DOUBLING), counts[number]) for number in range(min(numbers), max(numbers) + 1))


class DecoderBench:
    """Times the parts of a generation one by one, each behind `depth` tokens that are in the cache already."""

    def __init__(self, model: Model) -> None:
        """Raise RunError for an encoder."""
        self._session = model.session

    def check(self, tokens: int) -> None:
        """Raise RunError when so many tokens do not fit the context."""
        if tokens > self._session.context:
            raise RunError(f"bench: {tokens} tokens exceed the context of {self._session.context}; ask for fewer")

    def prompt(self, tokens: int, *, depth: int = 0) -> PromptTimes:
        """Times a prompt of `tokens`. Raises RunError when it does not fit the context."""
        self.check(depth + tokens)
        session = self._session
        with session.lock:
            owner = SlotOwner()
            try:
                slot = _filled(session, depth, owner)
                prompt = _random_ids(tokens, session.vocab_size)
                start = time.perf_counter()
                hidden = session.prefill(prompt, slot)
                prefilled = time.perf_counter()
                int(session.logits(hidden)[0].argmax())
                return PromptTimes(prefilled - start, time.perf_counter() - start)
            finally:
                owner.has_left = True

    def decode(self, tokens: int, *, depth: int = 0) -> list[float]:
        """The seconds of each of `tokens` steps: a token in, the likeliest one out. Raises RunError likewise."""
        self.check(depth + tokens)
        session = self._session
        with session.lock:
            owner = SlotOwner()
            try:
                slot = _filled(session, depth, owner)
                token = 0
                steps: list[float] = []
                last = time.perf_counter()
                for _ in range(tokens):
                    token = _likeliest(session, token, slot)
                    now = time.perf_counter()
                    steps.append(now - last)
                    last = now
                return steps
            finally:
                owner.has_left = True


def time_texts(model: Model, texts: Sequence[str]) -> float:
    """The seconds that embedding these texts takes. Raises RunError for a decoder."""
    return _seconds(lambda: model.embed(texts))


def _likeliest(session: Session, token: int, slot: int) -> int:
    """The token after this one, chosen where generation would choose it."""
    if not session.samples:
        return int(session.logits(session.step((token,), (slot,)))[0].argmax())
    row = RowSampling(slot, 0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, None)
    (found,) = session.next_tokens((token,), (slot,), (row,))
    return found if isinstance(found, int) else int(found.argmax())


def _filled(session: Session, depth: int, owner: SlotOwner) -> int:
    """A slot of the owner's with `depth` tokens in it."""
    prompt = _random_ids(depth, session.vocab_size)
    slot = session.acquire(prompt, owner=owner)
    missing = prompt[session.length(slot) :]
    if missing:
        session.prefill(missing, slot)
    return slot


def _random_ids(tokens: int, vocab_size: int) -> list[int]:
    random = np.random.Generator(np.random.PCG64(0))
    return [int(token) for token in random.integers(0, vocab_size, tokens)]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
