"""Choosing the next token from logits z f32[vocab].

In this order, each step on what the one before left (the order of transformers' logits processors):

    repetition r   z_i := z_i / r if z_i > 0 else z_i * r      for i in prompt or output
    frequency f    z_i := z_i - f * count_i                    count_i: times i is in the output
    presence  p    z_i := z_i - p                              for i in the output
    greedy         argmax z (the lowest id wins a tie), when temperature is 0; the steps below are left out
    temperature T  z_i := z_i * (1 / T), 1 / T rounded to float32
    top-k          keep z_i >= the k-th largest                (ties with the k-th are kept)
    top-p          sort by falling probability over what is left; keep i while the mass before i is below p
    min-p          keep P_i >= m * max P
    draw           inverse CDF over what is left, in order of rising id, with one uniform number a token

Repetition is CTRL's (arXiv:1909.05858) over prompt and output; frequency and presence are those of the OpenAI
API, over the output. Log-probabilities are log_softmax of the logits as the model gave them, before any step.
Probabilities are float32, and so are sums of up to 512 of them; sums of those are float64.
The generator is numpy's PCG64: the same seed, logits and parameters give the same tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import FloatArray, RowSampling
from pyc.runtime.generation.candidates import IdArray, draw, largest, restrict
from pyc.runtime.generation.settings import SAMPLING
from pyc.runtime.generation.token_counts import TokenCounts

_STEEPEST = 1e30  # what differences are multiplied by at most, in f32: those of logits do not overflow


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens; the defaults draw from the model's own distribution. Raises RunError on nonsense.

    `logprobs` is the number of alternatives to report with each token: 0 reports the chosen token's own
    log-probability only, None reports nothing. `seed` None takes entropy from the system.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for setting in SAMPLING:
            value: object = getattr(self, setting.name)
            if value is not None or setting.name not in ("seed", "logprobs"):
                object.__setattr__(self, setting.name, setting.checked(value))  # numpy's numbers are Python's from here


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its natural log-probability under the model."""

    id: int
    logprob: float


class Choice(NamedTuple):
    """The chosen token; `logprob` and `alternatives` (most likely first) as SamplingParams.logprobs asks."""

    id: int
    logprob: float | None
    alternatives: tuple[TokenLogprob, ...]


class Sampler:
    """Chooses one sequence's tokens: the parameters, the random state and the counts that penalties need."""

    def __init__(self, params: SamplingParams, vocab_size: int, prompt: Sequence[int] = ()) -> None:
        self._params = params
        self._random = np.random.Generator(np.random.PCG64(params.seed))
        penalised = (
            params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )
        self._counts = TokenCounts(vocab_size, prompt) if penalised else None
        self._uniform = self._next_uniform()

    def row(self, sequence: int) -> RowSampling | None:
        """How an executor chooses the next token, whose row of the block table is `sequence`; None where that takes
        logits. Asked again before `take` or `sample`, it says the same."""
        params = self._params
        if params.logprobs is not None:
            return None
        penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        narrowing = params.temperature, params.top_k, params.top_p, params.min_p
        return RowSampling(sequence, *narrowing, *penalties, self._uniform, self._counts)

    def take(self, token: int) -> Choice:
        """The next token, which an executor chose by `row`."""
        self._uniform = self._next_uniform()
        if self._counts is not None:
            self._counts.add(token)
        return Choice(token, None, ())

    def sample(self, logits: FloatArray) -> Choice:
        """The next token for `logits` f32[vocab], which stay as they are. Raises RunError for NaN or
        infinity."""
        params = self._params
        likeliest = int(logits.argmax())  # of NaN, where there is one
        peak = float(logits[likeliest])
        if not math.isfinite(peak):
            raise RunError(
                f"sampling: the largest logit is {peak}; the weights are broken, or keys and values are beyond what "
                "f16 holds (65504): build with quantize.kv_cache: f32, or int8"
            )
        if self._counts is not None:
            token = choose(self._apply_penalties(logits, self._counts), params, self._uniform)
        else:
            token = likeliest if params.temperature == 0.0 else choose(logits, params, self._uniform, peak)
        choice = self.take(token)
        if params.logprobs is None:
            return choice
        logprob, alternatives = token_logprobs(logits, token, params.logprobs)
        return Choice(token, logprob, alternatives)

    def _apply_penalties(self, logits: FloatArray, counts: TokenCounts) -> FloatArray:
        params = self._params
        strengths = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        return apply_penalties(logits, counts.seen, counts.output, counts.of_output(), *strengths)

    def _next_uniform(self) -> float:
        """The number of [0, 1) that the next token is drawn by: one a token, none of greedy decoding."""
        return self._random.random() if self._params.temperature > 0.0 else 0.0


def apply_penalties(
    logits: FloatArray,
    seen: IdArray,
    output: IdArray,
    counts: NDArray[np.int32],
    repetition: float,
    frequency: float,
    presence: float,
) -> FloatArray:
    """A copy of `logits` f32[vocab] after the penalties (formulas above).

    `seen` are the distinct ids of prompt and output, `output` those of the output, `counts` how often each.
    """
    scores = logits.copy()
    values = scores[seen]
    scores[seen] = np.where(values > 0, values / np.float32(repetition), values * np.float32(repetition))
    scores[output] -= np.float32(frequency) * counts.astype(np.float32) + np.float32(presence)
    return scores


def choose(scores: FloatArray, params: SamplingParams, uniform: float, peak: float | None = None) -> int:
    """The token for `scores` f32[vocab] after penalties: the argmax at temperature 0, else a draw by `uniform`.

    `peak` is the largest score, where it is known.
    """
    if params.temperature == 0.0:
        return int(scores.argmax())
    kept, weights = weigh_candidates(scores, params, peak)
    position = draw(weights, uniform)
    return position if kept is None else int(kept[position])


def weigh_candidates(
    scores: FloatArray, params: SamplingParams, peak: float | None = None
) -> tuple[IdArray | None, FloatArray]:
    """Temperature, top-k, top-p and min-p, at params.temperature > 0: ascending ids, None for the whole vocabulary,
    and their weights f32: probabilities, not normalised (the likeliest has 1), and 0 for what is left out."""
    largest_score = scores.max() if peak is None else np.float32(peak)
    kept: IdArray | None = None
    values = scores
    if 0 < params.top_k < scores.size:
        kept = largest(scores, params.top_k)
        values = scores[kept]
    weights = np.subtract(values, largest_score)
    if params.temperature != 1.0:
        np.multiply(weights, np.float32(min(1.0 / params.temperature, _STEEPEST)), out=weights)
    np.exp(weights, out=weights)
    inner, weights = restrict(weights, params.top_p, params.min_p)
    if kept is None or inner is None:
        return (inner if kept is None else kept), weights
    return kept[inner], weights


def token_logprobs(logits: FloatArray, token: int, count: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """log_softmax of `logits` f32[vocab] at `token`, and at the `count` likeliest ids, most likely first."""
    peak = logits.max()
    log_total = float(peak) + math.log(float(np.exp(logits - peak).sum(dtype=np.float64)))
    own = float(logits[token]) - log_total
    count = min(count, logits.size)
    if count == 0:
        return own, ()
    likely = largest(logits, count)
    order = likely[np.argsort(-logits[likely], kind="stable")][:count]
    return own, tuple(TokenLogprob(int(i), float(logits[i]) - log_total) for i in order)
