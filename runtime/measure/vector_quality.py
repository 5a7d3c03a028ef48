"""How far an encoder's vectors lie from a reference's: cosines, and whether texts keep their order by likeness.

For texts i with vectors a_i of the encoder and b_i of the reference:

    cosine             a_i . b_i / (|a_i| |b_i|), over all texts; 1 where both are zeros, 0 where one is
    rank correlation   Spearman's: the correlation of the ranks of cos(a_i, a_j) and of cos(b_i, b_j) over all pairs
                       i < j; equal values have the mean of their ranks

A search that ranks texts by likeness finds the same ones in the same order where the rank correlation is 1. Pairs grow
with the square of the texts, so of more than PAIR_TEXTS texts so many take part, evenly spaced. Arithmetic is f64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import FloatArray
from pyc.runtime.measure.quality import Estimate, Wide, mean
from pyc.runtime.text.counted import counted

PAIR_TEXTS = 1024
"""Texts whose pairs are ranked: half a million pairs."""

LEAST_TEXTS = 3
"""Fewer have no order that could change."""


@dataclass(frozen=True, slots=True)
class VectorQuality:
    """`cosine` over all texts, the least with the number of its text from 0, and Spearman's rank correlation."""

    texts: int
    cosine: Estimate
    cosine_least: float
    least_text: int
    rank_correlation: float
    ranked_texts: int


def vector_quality(own: FloatArray, reference: FloatArray) -> VectorQuality:
    """Return the statistics of vectors [texts, width] of at least LEAST_TEXTS texts. Raises RunError for fewer."""
    count = len(own)
    if count < LEAST_TEXTS:
        found = f"it has {counted(count, 'line')} with text"
        raise RunError(f"the text: {found}, expected at least {LEAST_TEXTS} to rank; give more")
    first, second = directions(own), directions(reference)
    cosines = _cosines(first, second)
    chosen = np.unique(np.linspace(0, count - 1, min(count, PAIR_TEXTS)).round().astype(np.intp))
    pairs = np.triu_indices(len(chosen), 1)
    correlation = rank_correlation(
        (first[chosen] @ first[chosen].T)[pairs], (second[chosen] @ second[chosen].T)[pairs]
    )
    least = int(cosines.argmin())
    return VectorQuality(count, mean(cosines), float(cosines[least]), least, correlation, len(chosen))


def cosines_of(own: FloatArray, reference: FloatArray) -> Wide:
    """Return the cosine of each text's two vectors."""
    return _cosines(directions(own), directions(reference))


def _cosines(first: Wide, second: Wide) -> Wide:
    """The cosines of directions: two vectors of zeros are equal."""
    values: Wide = (first * second).sum(-1) + ~(first.any(-1) | second.any(-1))
    return values


def directions(vectors: FloatArray) -> Wide:
    """Return vectors of length 1; those of zeros stay zeros."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    directed: Wide = wide / np.where(lengths == 0, 1, lengths)
    return directed


def rank_correlation(first: Wide, second: Wide) -> float:
    """Return Spearman's rank correlation: 1 where both have one value only, 0 where one of them has."""
    one, other = ranks(first), ranks(second)
    one -= one.mean()
    other -= other.mean()
    scale = float(np.sqrt((one**2).sum() * (other**2).sum()))
    if not scale:
        return 0.0 if one.any() or other.any() else 1.0
    return float((one * other).sum()) / scale


def ranks(values: Wide) -> Wide:
    """Return the rank of each value from 1, equal ones having the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: Wide = (last - (counts - 1) / 2)[which]
    return found
