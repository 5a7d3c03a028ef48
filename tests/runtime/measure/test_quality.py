"""Statistics of logits against sums that are written out one by one, in f64 and with math.fsum.

Both compute in f64; 1e-12 of the value is what sums over a few hundred terms in another order may differ by, and KL, a
difference of near numbers, may by 1e-12 nats.
"""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from pyc.runtime.measure.quality import (
    LARGEST_LN,
    Estimate,
    RowScores,
    joined,
    log_probabilities,
    mean,
    most_likely,
    score_rows,
    text_quality,
)

POSITIONS, VOCABULARY = 60, 23
NEAR = {"rel": 1e-12, "abs": 1e-12}


@pytest.fixture(scope="module")
def logits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a model and of a reference [positions, vocabulary], and the tokens that follow."""
    random = np.random.default_rng(0)
    reference = (4 * random.standard_normal((POSITIONS, VOCABULARY))).astype(np.float32)
    own = reference + 0.5 * random.standard_normal(reference.shape).astype(np.float32)
    return own, reference, random.integers(0, VOCABULARY, POSITIONS)


def softmax(row: np.ndarray) -> list[float]:
    """Probabilities of logits, by the definition."""
    values = [math.exp(float(value)) for value in row]
    total = math.fsum(values)
    return [value / total for value in values]


def average(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def covariance(first: list[float], second: list[float]) -> float:
    """Of two means."""
    one, two = average(first), average(second)
    return average([(a - one) * (b - two) for a, b in zip(first, second, strict=True)]) / (len(first) - 1)


def quality(own: np.ndarray, reference: np.ndarray, targets: np.ndarray, parts: int = 1):
    scores = [
        score_rows(log_probabilities(own[rows]), targets[rows], log_probabilities(reference[rows]))
        for rows in np.array_split(np.arange(len(targets)), parts)
    ]
    return text_quality(joined(scores))


def test_every_statistic_is_what_its_formula_says(logits):
    own, reference, targets = logits
    found = quality(own, reference, targets)
    divergence = found.divergence
    q, p = [softmax(row) for row in own], [softmax(row) for row in reference]
    nll = [-math.log(row[token]) for row, token in zip(q, targets, strict=True)]
    base = [-math.log(row[token]) for row, token in zip(p, targets, strict=True)]
    kl = [math.fsum(a * math.log(a / b) for a, b in zip(one, two, strict=True)) for one, two in zip(p, q, strict=True)]
    perplexity, of_base = math.exp(average(nll)), math.exp(average(base))

    assert found.positions == POSITIONS
    assert found.perplexity.value == pytest.approx(perplexity, **NEAR)
    assert found.perplexity.error == pytest.approx(perplexity * math.sqrt(covariance(nll, nll)), **NEAR)
    assert divergence.reference_perplexity.value == pytest.approx(of_base, **NEAR)
    assert divergence.kl.value == pytest.approx(average(kl), **NEAR)
    assert divergence.kl.error == pytest.approx(math.sqrt(covariance(kl, kl)), **NEAR)
    assert (divergence.kl_least, divergence.kl_most) == pytest.approx((min(kl), max(kl)), **NEAR)

    ordered = sorted(kl)
    for percent, value in divergence.kl_percentiles:
        place = percent / 100 * (POSITIONS - 1)
        below = math.floor(place)
        above = min(below + 1, POSITIONS - 1)
        expected = ordered[below] + (place - below) * (ordered[above] - ordered[below])
        assert value == pytest.approx(expected, **NEAR), percent
    assert divergence.kl_median == divergence.percentile(50.0)

    # the difference's error has the covariance in it: var(a - b) = var(a) + var(b) - 2 cov(a, b)
    var_q, var_p, both = covariance(nll, nll), covariance(base, base), covariance(nll, base)
    assert divergence.log_perplexity_ratio.value == pytest.approx(average(nll) - average(base), **NEAR)
    assert divergence.log_perplexity_ratio.error == pytest.approx(math.sqrt(var_q + var_p - 2 * both), rel=1e-9)
    assert divergence.perplexity_ratio.value == pytest.approx(perplexity / of_base, **NEAR)
    error = math.sqrt((perplexity**2) * var_q + (of_base**2) * var_p - 2 * perplexity * of_base * both)
    assert divergence.perplexity_difference.value == pytest.approx(perplexity - of_base, **NEAR)
    assert divergence.perplexity_difference.error == pytest.approx(error, rel=1e-9)
    assert divergence.nll_correlation == pytest.approx(both / math.sqrt(var_q * var_p), **NEAR)

    same = [float(one.index(max(one)) == two.index(max(two))) for one, two in zip(p, q, strict=True)]
    assert divergence.same_top.value == pytest.approx(average(same), **NEAR)
    share = divergence.same_top.value  # llama.cpp's own formula for a share
    assert divergence.same_top.error == pytest.approx(math.sqrt(share * (1 - share) / (POSITIONS - 1)), **NEAR)

    def top(row: list[float]) -> set[int]:
        return set(sorted(range(VOCABULARY), key=lambda token: -row[token])[:5])

    overlap = [len(top(one) & top(two)) / 5 for one, two in zip(p, q, strict=True)]
    assert divergence.top_overlap.value == pytest.approx(average(overlap), **NEAR)

    change = [math.exp(-a) - math.exp(-b) for a, b in zip(nll, base, strict=True)]
    square = [value**2 for value in change]
    rms = math.sqrt(average(square))
    assert divergence.probability_change.value == pytest.approx(average(change), **NEAR)
    assert divergence.probability_rms.value == pytest.approx(rms, **NEAR)
    assert divergence.probability_rms.error == pytest.approx(math.sqrt(covariance(square, square)) / (2 * rms), **NEAR)


def test_parts_together_are_the_whole(logits):
    """Rows are independent: how many are scored at a time changes nothing, to the last bit."""
    assert quality(*logits, parts=7) == quality(*logits)


def test_a_model_is_at_no_distance_from_itself(logits):
    own, _, targets = logits
    divergence = quality(own, own, targets).divergence
    assert divergence.kl == Estimate(0.0, 0.0)
    assert (divergence.same_top.value, divergence.top_overlap.value) == (1.0, 1.0)
    assert divergence.perplexity_difference.value == 0
    assert divergence.probability_rms == Estimate(0.0, 0.0)


def test_without_a_reference_there_is_no_divergence(logits):
    own, _, targets = logits
    found = text_quality(score_rows(log_probabilities(own), targets))
    assert found.divergence is None
    assert found.mean_nll == quality(*logits).mean_nll


def test_logits_of_any_size_stay_finite():
    """A softmax that takes exp of a logit of 1000 is infinite."""
    own = log_probabilities(np.array([[1000.0, 0.0], [-1000.0, 0.0]], np.float32))
    np.testing.assert_allclose(own, [[0, -1000], [-1000, 0]], atol=1e-12)
    certain = score_rows(own, np.array([1, 0]), own)
    assert text_quality(certain).perplexity.value == pytest.approx(math.exp(LARGEST_LN), rel=1e-12), "of what f64 holds"
    assert certain.kl.tolist() == [0, 0]


@pytest.mark.parametrize("size", [100.0, 400.0, 1e4, 3e38])
def test_statistics_of_logits_of_any_size_are_numbers(size):
    """The square of the error of a perplexity of e^400 is no f64: that was an OverflowError."""
    random = np.random.default_rng(1)
    reference = random.uniform(-1, 1, (POSITIONS, VOCABULARY)).astype(np.float32)
    targets = random.integers(0, VOCABULARY, POSITIONS)
    for own, base in ((size * reference, reference), (reference, size * reference), (size * reference,) * 2):
        quality = text_quality(score_rows(log_probabilities(own), targets, log_probabilities(base)))
        assert json.dumps(asdict(quality), allow_nan=False)


def test_one_position_has_no_error():
    assert mean(np.array([3.0])) == Estimate(3.0, 0.0)


def test_a_vocabulary_smaller_than_five_overlaps_whole():
    own = log_probabilities(np.array([[1.0, 2.0, 3.0]], np.float32))
    assert sorted(most_likely(own)[0].tolist()) == [0, 1, 2]
    assert score_rows(own, np.array([0]), own).top_overlap.tolist() == [1.0]


def test_the_given_logits_are_left_as_they_are(logits):
    own, _, _ = logits
    before = own.copy()
    log_probabilities(own)
    np.testing.assert_array_equal(own, before)


def test_joining_keeps_the_order():
    parts = [
        RowScores(np.array([float(n)]), np.array([10.0 + n]), np.array([20.0 + n]), np.array([True]), np.array([1.0]))
        for n in range(3)
    ]
    assert joined(parts).nll.tolist() == [0, 1, 2]
    assert joined(parts).kl.tolist() == [20, 21, 22]
