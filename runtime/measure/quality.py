"""How well a model predicts a text, and how far its predictions lie from a reference's: statistics of logits.

A text is scored as llama.cpp's perplexity tool does: in windows, each a text of its own, of which the second half
counts. For each scored position t, with the token y that follows, the reference's distribution p and the model's q:

    nll   -ln q(y)                              nats
    kl    KL(p || q) = sum_v p(v) (ln p(v) - ln q(v))   nats
    top   whether argmax p = argmax q; of ties the lowest id is the largest
    top5  how many of the five most likely tokens of p are among those of q, a fifth each

over n positions, with var(x) = mean(x^2) - mean(x)^2 and cov likewise:

    error of a mean              sqrt(var(x) / (n - 1))
    perplexity                   exp(mean(nll)), error: perplexity times the error of mean(nll)
    ln of the perplexities' ratio   mean(nll) - mean(nll of p), error: that of the mean of the differences, which are
                                 paired, and so smaller than the errors of the two
    ratio                        exp of it, error: ratio times its error
    difference of perplexities   Q - P, error^2: e_Q^2 + e_P^2 - 2 Q P cov(nll, nll of p) / (n - 1)
    exp                          of at most LARGEST_LN, so that perplexities, their errors and differences are finite
    percentile                   between the two nearest values, in proportion (numpy's "linear")

Errors take positions for independent, as llama.cpp does; neighbouring ones are not quite. Arithmetic is f64. llama.cpp
keeps the reference in 16 bits and leaves out tokens with ln p(v) <= -16, at most e^-16 of p each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.executors.protocol import FloatArray

Wide = NDArray[np.float64]

TOP = 5
"""Tokens whose overlap is counted."""

PERCENTILES = (1.0, 5.0, 10.0, 50.0, 90.0, 95.0, 99.0, 99.9)
"""Of the KL, as llama.cpp prints them."""


LARGEST_LN = 600.0
"""Of a perplexity or a ratio: exp of it, times the error of a mean of f32 logits (1e39), is a number of f64."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error; 0 where one value says nothing of it."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class RowScores:
    """What is kept of scored positions, arrays [positions]; without a reference all but `nll` are empty."""

    nll: Wide
    reference_nll: Wide
    kl: Wide
    same_top: NDArray[np.bool_]
    top_overlap: Wide


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far predictions lie from a reference's; the module says what each is.

    `kl_percentiles` are pairs of percent and nats; `probability_change` is of q(y) - p(y), `probability_rms` the root
    of the mean of its square.
    """

    reference_perplexity: Estimate
    log_perplexity_ratio: Estimate
    perplexity_ratio: Estimate
    perplexity_difference: Estimate
    nll_correlation: float
    kl: Estimate
    kl_least: float
    kl_most: float
    kl_percentiles: tuple[tuple[float, float], ...]
    same_top: Estimate
    top_overlap: Estimate
    probability_change: Estimate
    probability_rms: Estimate

    def percentile(self, percent: float) -> float:
        """The KL that so many of the positions do not exceed, one of PERCENTILES."""
        return dict(self.kl_percentiles)[percent]

    @property
    def kl_median(self) -> float:
        """The KL of the position in the middle."""
        return self.percentile(50.0)


@dataclass(frozen=True, slots=True)
class TextQuality:
    """How well a model predicts a text of `positions` scored tokens, and its divergence from a reference, if any."""

    positions: int
    mean_nll: Estimate
    perplexity: Estimate
    divergence: Divergence | None


def log_probabilities(logits: FloatArray) -> Wide:
    """Return the log-softmax f64 [rows, vocabulary] of logits, a copy."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


def score_rows(own: Wide, targets: NDArray[np.integer], reference: Wide | None = None) -> RowScores:
    """Return the scores of rows: log-probabilities [rows, vocabulary] of the model and the reference, the tokens
    [rows] that follow."""
    rows = np.arange(len(targets))
    nll = -own[rows, targets]
    if reference is None:
        empty = np.empty(0)
        return RowScores(nll, empty, empty, np.empty(0, np.bool_), empty)
    kl = np.einsum("rv,rv->r", np.exp(reference), reference - own)
    wanted, found = most_likely(reference), most_likely(own)
    overlap = (wanted[:, :, None] == found[:, None, :]).sum((1, 2)) / wanted.shape[1]
    return RowScores(nll, -reference[rows, targets], kl, reference.argmax(-1) == own.argmax(-1), overlap)


def most_likely(log_p: Wide, count: int = TOP) -> NDArray[np.intp]:
    """Return the ids [rows, count] of the most likely tokens, in no order; all of a vocabulary of fewer."""
    count = min(count, log_p.shape[-1])
    return np.argpartition(log_p, -count, axis=-1)[:, -count:]


def joined(parts: Sequence[RowScores]) -> RowScores:
    """Return the scores of all parts, in order."""
    return RowScores(
        np.concatenate([part.nll for part in parts]),
        np.concatenate([part.reference_nll for part in parts]),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.same_top for part in parts]),
        np.concatenate([part.top_overlap for part in parts]),
    )


def text_quality(scores: RowScores) -> TextQuality:
    """Return the statistics of at least one position."""
    mean_nll = mean(scores.nll)
    perplexity = _exponential(mean_nll)
    divergence = _divergence(scores, perplexity) if scores.kl.size else None
    return TextQuality(scores.nll.size, mean_nll, perplexity, divergence)


def mean(values: Wide) -> Estimate:
    """Return the mean of at least one value."""
    return Estimate(float(values.mean()), math.sqrt(_covariance(values, values)))


def _divergence(scores: RowScores, perplexity: Estimate) -> Divergence:
    reference = _exponential(mean(scores.reference_nll))
    log_ratio = mean(scores.nll - scores.reference_nll)
    together = _covariance(scores.nll, scores.reference_nll)
    apart = math.sqrt(_covariance(scores.nll, scores.nll) * _covariance(scores.reference_nll, scores.reference_nll))
    largest = max(perplexity.value, reference.value)  # divided by it, squares of errors are numbers
    own, its = perplexity.value / largest, reference.value / largest
    difference_error = (perplexity.error / largest) ** 2 + (reference.error / largest) ** 2 - 2 * own * its * together
    change = np.exp(-scores.nll) - np.exp(-scores.reference_nll)
    square = mean(change**2)
    rms = math.sqrt(square.value)
    values = np.percentile(scores.kl, PERCENTILES)
    return Divergence(
        reference_perplexity=reference,
        log_perplexity_ratio=log_ratio,
        perplexity_ratio=_exponential(log_ratio),
        perplexity_difference=Estimate(
            perplexity.value - reference.value, largest * math.sqrt(max(difference_error, 0.0))
        ),
        nll_correlation=together / apart if apart else 1.0,
        kl=mean(scores.kl),
        kl_least=float(scores.kl.min()),
        kl_most=float(scores.kl.max()),
        kl_percentiles=tuple(zip(PERCENTILES, map(float, values), strict=True)),
        same_top=mean(scores.same_top.astype(np.float64)),
        top_overlap=mean(scores.top_overlap),
        probability_change=mean(change),
        probability_rms=Estimate(rms, square.error / (2 * rms) if rms else 0.0),
    )


def _covariance(first: Wide, second: Wide) -> float:
    """Of two means, of values that are paired."""
    if first.size < 2:
        return 0.0
    return float(((first - first.mean()) * (second - second.mean())).mean()) / (first.size - 1)


def _exponential(log_value: Estimate) -> Estimate:
    value = math.exp(min(log_value.value, LARGEST_LN))
    return Estimate(value, value * log_value.error)
