"""Measures a loaded model: time to the first token, prefill and decode speed, sentences a second.

Prompts are token ids in a fixed pseudo-random order, decoding is greedy and does not stop at an
end-of-sequence token, so every repeat does the same work. One short run warms up the caches and is not
counted.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyc.runtime.errors import RunError
from pyc.runtime.model import Model
from pyc.runtime.session import Session

WARM_UP_TOKENS = 4
BINS_A_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class Spread:
    """Median over the repeats, with the least and the most."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class DecoderTimes:
    """`ttft_s`: prompt to first token, seconds. `prefill_tok_s`, `decode_tok_s`: tokens a second.
    `decode_ms`: milliseconds of every decode step of every repeat."""

    ttft_s: Spread
    prefill_tok_s: Spread
    decode_tok_s: Spread
    decode_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EncoderTimes:
    """`sentences_s`: texts a second, embedded one batch at a time; `latency_s`: one text alone, seconds."""

    sentences_s: Spread
    latency_s: Spread


def spread(values: Sequence[float]) -> Spread:
    """Median, least and most of at least one value."""
    return Spread(float(np.median(values)), min(values), max(values))


def histogram(values: Sequence[float]) -> tuple[tuple[float, int], ...]:
    """How many of at least one positive value lie in each bin: the bin's upper edge and the count, ascending.

    Edges are powers of 2^(1/8), so a bin is 9 % wide; the first and the last bin are not empty.
    """
    numbers = [math.ceil(math.log2(value) * BINS_A_DOUBLING) for value in values]
    counts = Counter(numbers)
    return tuple((2 ** (number / BINS_A_DOUBLING), counts[number]) for number in range(min(numbers), max(numbers) + 1))


def measure_decoder(model: Model, *, prompt_tokens: int, decode_tokens: int, repeat: int) -> DecoderTimes:
    """Times `repeat` generations. Raises RunError when they do not fit the context."""
    session = model.session
    if prompt_tokens + decode_tokens > session.context:
        raise RunError(
            f"bench: {prompt_tokens} prompt and {decode_tokens} decode tokens exceed the context of "
            f"{session.context}; ask for fewer"
        )
    prompt = _prompt(prompt_tokens, session.vocab_size)
    with session.lock:
        _generate(session, prompt[:WARM_UP_TOKENS], min(decode_tokens, WARM_UP_TOKENS))
        runs = [_generate(session, prompt, decode_tokens) for _ in range(repeat)]
    return DecoderTimes(
        ttft_s=spread([first for first, _, _ in runs]),
        prefill_tok_s=spread([prompt_tokens / prefill for _, prefill, _ in runs]),
        decode_tok_s=spread([len(steps) / sum(steps) for _, _, steps in runs]),
        decode_ms=tuple(step * 1e3 for _, _, steps in runs for step in steps),
    )


def measure_encoder(model: Model, *, texts: Sequence[str], repeat: int) -> EncoderTimes:
    """Times `repeat` embeddings of `texts`, and of the first of them alone."""
    model.embed(texts[:1])
    together = [_seconds(lambda: model.embed(texts)) for _ in range(repeat)]
    alone = [_seconds(lambda: model.embed(texts[:1])) for _ in range(repeat)]
    return EncoderTimes(spread([len(texts) / seconds for seconds in together]), spread(alone))


def _generate(session: Session, prompt: Sequence[int], decode_tokens: int) -> tuple[float, float, list[float]]:
    """Seconds to the first token, of the prefill alone, and of each decode step."""
    slot = session.acquire()
    try:
        start = time.perf_counter()
        hidden = session.prefill(prompt, slot)
        prefilled = time.perf_counter()
        token = int(session.logits(hidden)[0].argmax())
        last = time.perf_counter()
        first_s, prefill_s = last - start, prefilled - start
        steps: list[float] = []
        for _ in range(decode_tokens):
            token = int(session.logits(session.step((token,), (slot,)))[0].argmax())
            now = time.perf_counter()
            steps.append(now - last)
            last = now
        return first_s, prefill_s, steps
    finally:
        session.release(slot)


def _prompt(tokens: int, vocab_size: int) -> list[int]:
    random = np.random.Generator(np.random.PCG64(0))
    return [int(token) for token in random.integers(0, vocab_size, tokens)]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
