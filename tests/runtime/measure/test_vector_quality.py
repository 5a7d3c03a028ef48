"""Cosines and rank correlation against what the definitions say, one pair at a time."""

import itertools
import math

import numpy as np
import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.measure.vector_quality import (
    PAIR_TEXTS,
    cosines_of,
    directions,
    rank_correlation,
    ranks,
    vector_quality,
)


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    product = math.fsum(float(a) * float(b) for a, b in zip(one, two, strict=True))
    return product / math.sqrt(math.fsum(float(a) ** 2 for a in one) * math.fsum(float(b) ** 2 for b in two))


def rank_of(values: list[float], value: float) -> float:
    """The mean place, from 1, of those equal to it."""
    below = sum(other < value for other in values)
    equal = sum(other == value for other in values)
    return below + (equal + 1) / 2


def spearman(first: list[float], second: list[float]) -> float:
    one = [rank_of(first, value) for value in first]
    two = [rank_of(second, value) for value in second]
    return float(np.corrcoef(one, two)[0, 1])


@pytest.fixture
def vectors() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    reference = random.standard_normal((17, 6)).astype(np.float32)
    return (reference + 0.3 * random.standard_normal(reference.shape)).astype(np.float32), reference


def test_statistics_are_what_the_definitions_say(vectors):
    own, reference = vectors
    found = vector_quality(own, reference)
    cosines = [cosine(one, two) for one, two in zip(own, reference, strict=True)]
    assert (found.texts, found.ranked_texts) == (17, 17)
    assert found.cosine.value == pytest.approx(math.fsum(cosines) / 17, abs=1e-12)
    assert found.cosine_least == pytest.approx(min(cosines), abs=1e-12)
    assert found.least_text == cosines.index(min(cosines))
    pairs = list(itertools.combinations(range(17), 2))
    likeness = [[cosine(side[i], side[j]) for i, j in pairs] for side in (own, reference)]
    assert found.rank_correlation == pytest.approx(spearman(*likeness), abs=1e-9)


def test_the_same_vectors_and_longer_ones_are_at_no_distance(vectors):
    _, reference = vectors
    found = vector_quality(reference * np.float32(3), reference)
    assert found.cosine.value == pytest.approx(1, abs=1e-12)
    assert found.rank_correlation == pytest.approx(1, abs=1e-9)


def test_equal_values_share_their_ranks():
    values = [3.0, 1.0, 3.0, 2.0, 3.0]
    assert ranks(np.array(values)).tolist() == [rank_of(values, value) for value in values] == [4, 1, 4, 2, 4]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 2.0, 3.0], [10.0, 20.0, 1000.0], 1.0),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], -1.0),
        ([1.0, 1.0], [5.0, 5.0], 1.0),
        ([1.0, 1.0], [5.0, 6.0], 0.0),
    ],
)
def test_only_the_order_counts(first, second, expected):
    assert rank_correlation(np.array(first), np.array(second)) == pytest.approx(expected)


def test_a_vector_of_zeros_is_like_nothing():
    assert directions(np.zeros((1, 3), np.float32)).tolist() == [[0, 0, 0]]
    own, reference = np.eye(4, 3, dtype=np.float32), np.eye(4, 3, k=1, dtype=np.float32)
    assert cosines_of(own, reference).tolist() == [0, 0, 0, 1], "but like another of zeros"
    found = vector_quality(own, own)
    assert (found.cosine.value, found.cosine_least, found.rank_correlation) == (1, 1, 1)


def test_of_many_texts_some_are_ranked_and_all_have_a_cosine():
    many = np.random.default_rng(1).standard_normal((PAIR_TEXTS + 300, 4)).astype(np.float32)
    found = vector_quality(many, many)
    assert (found.texts, found.ranked_texts) == (PAIR_TEXTS + 300, PAIR_TEXTS)


def test_too_few_texts():
    with pytest.raises(RunError, match="it has 2 lines with text, expected at least 3"):
        vector_quality(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
