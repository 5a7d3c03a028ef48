"""What may be drawn after top-k, top-p and min-p, and the draw: weights f32, not normalised, the likeliest has 1.

A vocabulary of 150,000 is a vector that each pass reads in 10 to 100 us, so it is never sorted and seldom gathered:
what is left out of a large nucleus stays in its place with weight 0. The border of a nucleus is found by quickselect
on mass, with a bracket from a sample:

    f      fraction of the mass that the border needs above it
    f'(t)  mass of w > t in a sample of 2048 over the sample's: a ratio estimator of standard error e
    [a, b] weights at which f' is f + 1.5 e and f - 1.5 e: few lie between, and the border seven times of eight

Where a few weights have most of the mass a sample says little, and there is no such a, or no b: then a is a weight
that about twice as many exceed as belong to the nucleus in the sample. A look at all weights says what lies above b
and between. A miss costs another round, never the result; a wider bracket costs more in the mean.
Weights are non-negative, so their bits as int32 have their order, and comparing is integer arithmetic.
Mass is summed in f32 over blocks of 512 and in f64 over blocks: relative error below 2e-6.
"""

import math

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.executors.protocol import FloatArray

IdArray = NDArray[np.int64]

BLOCK = 512
_SAMPLE = 2048  # at most, and an eighth of the weights
_SORTED = 8192  # candidates for a border that are sorted: another round takes as long as sorting so many
_ERRORS = 1.5
_SPARE = 16


def largest(values: FloatArray, count: int) -> IdArray:
    """Ascending indices of every element that is at least the `count`-th largest of `values` (ties
    included)."""
    size = values.size
    if count >= size:
        return np.arange(size)
    groups = min(size // 8, 64 * count)
    if groups >= 4 * count:
        # The count-th largest of the groups' maxima is at most the count-th largest element.
        rows = size // groups
        maxima = values[: rows * groups].reshape(rows, groups).max(axis=0)
        bound = np.partition(maxima, groups - count)[groups - count]
        candidates = np.flatnonzero(values >= bound)
        few = values[candidates]
    else:
        candidates = np.arange(size)
        few = values
    threshold = np.partition(few, few.size - count)[few.size - count]
    chosen: IdArray = candidates[few >= threshold]
    return chosen


def restrict(weights: FloatArray, top_p: float, min_p: float) -> tuple[IdArray | None, FloatArray]:
    """What top-p and min-p leave of `weights`: ascending indices, None for all, and their weights, 0 for what is left
    out nevertheless."""
    least = np.float32(min_p) * weights.max() if min_p > 0.0 else np.float32(0)
    kept: IdArray | None = None
    if top_p < 1.0:
        mass = float(block_sums(weights).sum())
        kept, weights = _nucleus(weights, mass, top_p * mass)
    return kept, _not_below(weights, least) if least > 0.0 else weights


def _nucleus(weights: FloatArray, mass: float, target: float) -> tuple[IdArray | None, FloatArray]:
    """The fewest largest of `weights`, which weigh `mass`, that reach `target` (at least one), as in `restrict`. Of
    equal weights the lower index counts as the larger."""
    if weights.size <= _SORTED:
        return None, _sorted_nucleus(weights, target)
    low, high = _bracket(weights, mass, target)
    certain: FloatArray | None = None
    between: NDArray[np.bool_] | None = None
    mass_certain = 0.0
    if high is not None:
        between, certain = _split(weights, low, high)
        mass_certain = float(block_sums(certain).sum())
    if high is not None and mass_certain >= target:
        open_ids, certain, mass_certain = np.flatnonzero(weights > high), None, 0.0
        undecided = weights.take(open_ids)
        mass_open = float(block_sums(undecided).sum())
    else:
        if low == high and target <= mass_certain + float(low) * np.count_nonzero(weights == low):
            return None, _keep_equal(weights, low, math.ceil((target - mass_certain) / float(low)))
        open_ids = np.flatnonzero(weights >= low) if between is None else _indices_of_few(between)
        undecided = weights.take(open_ids)
        mass_open = float(block_sums(undecided).sum())
        if mass_certain + mass_open < target and low > 0.0:
            certain, mass_certain = _not_below(weights, low), mass_certain + mass_open
            open_ids, mass_open = np.flatnonzero(weights < low), mass - mass_certain
            undecided = weights.take(open_ids)
    if undecided.size in (0, weights.size):  # a bracket that tells nothing, or a target that rounding moved
        return None, _sorted_nucleus(weights, target)
    inner_ids, inner = _nucleus(undecided, mass_open, target - mass_certain)
    ids = open_ids if inner_ids is None else open_ids[inner_ids]
    if certain is None:
        return ids, inner
    certain[ids] = inner
    return None, certain


def _sorted_nucleus(weights: FloatArray, target: float) -> FloatArray:
    """The same by sorting, with 0 for what is left out."""
    falling = np.sort(weights)[::-1]
    masses = falling.astype(np.float64)
    count = max(1, int(np.searchsorted(np.cumsum(masses) - masses, target, side="left")))
    border = falling[count - 1]
    return _keep_equal(weights, border, int(np.count_nonzero(falling[:count] == border)))


def _keep_equal(weights: FloatArray, border: np.float32, count: int) -> FloatArray:
    """`weights` with 0 for those below `border`, and for those equal to it but the first `count`."""
    kept = _not_below(weights, border)
    equal = weights == border
    if np.count_nonzero(equal) > count:
        # The shortest beginning with so many: counting is faster than listing.
        low, high, missing = 0, equal.size, count
        while low < high:
            middle = (low + high) // 2
            found = int(np.count_nonzero(equal[low:middle]))
            if found >= missing:
                high = middle
            else:
                low, missing = middle + 1, missing - found - int(equal[middle])
        np.multiply(kept[low:], ~equal[low:], out=kept[low:])
    return kept


def _bracket(weights: FloatArray, mass: float, target: float) -> tuple[np.float32, np.float32 | None]:
    """Two weights between which the border most likely lies; None: there is no upper one."""
    falling = np.sort(weights[:: max(weights.size // _SAMPLE, 8)])[::-1].astype(np.float64)
    cumulative = np.cumsum(falling)
    fraction = min(1.0, target / mass)
    aim = fraction * cumulative[-1]
    place = min(int(cumulative.searchsorted(aim)), falling.size - 1)
    above, below = falling[:place], falling[place:]
    error = _ERRORS * math.sqrt((1 - fraction) ** 2 * above.dot(above) + fraction**2 * below.dot(below))
    first = int(cumulative.searchsorted(aim - error)) - 1
    last = int(cumulative.searchsorted(aim + error)) + 1
    if first < 0 or last >= falling.size:
        last = min(2 * place + _SPARE, falling.size - 1)
    return np.float32(falling[last]), np.float32(falling[first]) if first >= 0 else None


def _split(weights: FloatArray, low: np.float32, high: np.float32) -> tuple[NDArray[np.bool_], FloatArray]:
    """Which weights lie in [low, high], 0 <= low <= high, and `weights` with 0 where they are not above."""
    bits, least, most = weights.view(np.int32), int(low.view(np.int32)), int(high.view(np.int32))
    below = np.subtract(np.int32(most), bits)
    between = below.view(np.uint32) <= np.uint32(most - least)
    return between, _where_negative(below, bits)


def _indices_of_few(chosen: NDArray[np.bool_]) -> IdArray:
    """np.flatnonzero of few: eight at a time first."""
    whole = chosen.size // 8 * 8
    eights = chosen[:whole].view(np.uint64)
    some = np.flatnonzero(eights != 0)
    inside = np.flatnonzero(eights[some].view(np.bool_))
    return np.concatenate((some[inside >> 3] * 8 + (inside & 7), np.flatnonzero(chosen[whole:]) + whole))


def _not_below(weights: FloatArray, bound: np.float32) -> FloatArray:
    """`weights` with 0 where they are below `bound` >= 0."""
    bits = weights.view(np.int32)
    return _where_negative(np.subtract(np.int32(int(bound.view(np.int32)) - 1), bits), bits)


def _where_negative(differences: NDArray[np.int32], bits: NDArray[np.int32]) -> FloatArray:
    """The floats of `bits` with 0 where `differences`, which are overwritten, are not negative."""
    np.right_shift(differences, 31, out=differences)  # all ones where negative
    np.bitwise_and(differences, bits, out=differences)
    return differences.view(np.float32)


def block_sums(weights: FloatArray) -> NDArray[np.float64]:
    """Sums of blocks of 512, the last of what is left."""
    split = weights.size // BLOCK * BLOCK
    sums = np.empty(split // BLOCK + 1, dtype=np.float64)
    sums[:-1] = np.einsum("ij->i", weights[:split].reshape(-1, BLOCK))
    sums[-1] = weights[split:].sum()
    return sums


def draw(weights: FloatArray, uniform: float) -> int:
    """The index i at which the running sum of `weights` first exceeds `uniform` in [0, 1) times their sum."""
    sums = block_sums(weights)
    cumulative = np.cumsum(sums)
    target = uniform * float(cumulative[-1])
    # Rounding may put the target at the very end: then the last block, and index, with any weight is meant.
    block = min(int(np.searchsorted(cumulative, target, side="right")), int(np.flatnonzero(sums)[-1]))
    before = float(cumulative[block - 1]) if block else 0.0
    inside = weights[block * BLOCK : (block + 1) * BLOCK]
    running = np.cumsum(inside, dtype=np.float64)
    position = int(np.searchsorted(running, target - before, side="right"))
    return block * BLOCK + (position if position < inside.size else int(np.flatnonzero(inside)[-1]))
