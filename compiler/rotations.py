"""Orthogonal blocks of OFT and BOFT from what they learn, as PEFT makes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.floating]

FAST_SIZE = 32
"""Products of smaller blocks take longer than those of blocks joined to this size."""


def cayley(generators: Wide, count: int, size: int, terms: int, limit: float) -> Wide:
    """Return `count` blocks [size, size] for generators as `weights.Rotations` describes them."""
    skew = _skew(generators, size)
    if limit > 0:
        skew = _held(skew, limit)
    blocks = _series(skew, terms) if terms else _exact(skew)
    return _joined(np.broadcast_to(blocks, (count, size, size)))


def butterfly(columns: int, groups: int, size: int) -> NDArray[np.intp]:
    """Return where a row's columns go: position i of the result of BOFT's permutation comes from [i].

    In each of `groups` stretches of columns, half-blocks at even places come first, then those at odd ones.
    """
    stretch, half = columns // groups, size // 2
    places = np.arange(stretch // half)
    halves = np.concatenate([places[0::2], places[1::2]])
    within = (halves[:, None] * half + np.arange(half)).reshape(-1)
    return (np.arange(groups)[:, None] * stretch + within).reshape(-1)


def _joined(blocks: Wide) -> Wide:
    """Return the same block diagonal in fewer blocks, where they are small."""
    count, size, _ = blocks.shape
    together = next((n for n in range(FAST_SIZE // size, 1, -1) if count % n == 0), 1)
    joined = np.zeros((count // together, together, size, together, size))
    for place in range(together):
        joined[:, place, :, place, :] = blocks[place::together]
    return joined.reshape(count // together, together * size, together * size)


def _skew(generators: Wide, size: int) -> Wide:
    if generators.ndim == 3:
        return 0.5 * (generators - generators.transpose(0, 2, 1))
    upper = np.zeros((len(generators), size, size))
    rows, columns = np.triu_indices(size, 1)
    upper[:, rows, columns] = generators
    return upper - upper.transpose(0, 2, 1)


def _exact(skew: Wide) -> Wide:
    """Return R with R (I + S) = I - S; numpy solves from the left, so both sides are transposed."""
    eye = np.eye(skew.shape[-1])
    solved: Wide = np.linalg.solve((eye + skew).transpose(0, 2, 1), (eye - skew).transpose(0, 2, 1))
    return solved.transpose(0, 2, 1)


def _held(skew: Wide, limit: float) -> Wide:
    """Return matrices no longer than the limit of constrained OFT, which falls with the root of their number."""
    most = float(np.float32(limit) / np.sqrt(np.float32(len(skew))))  # PEFT has it in f32
    norms = np.sqrt(np.einsum("bij,bij->b", skew, skew))[:, None, None]
    return np.where(norms <= most, skew, most * skew / np.where(norms > 0, norms, 1))


def _series(skew: Wide, terms: int) -> Wide:
    """Return I + 2 S + 2 S^2 + ... + S^(terms - 1): the last term counts once, as PEFT has it."""
    total = np.broadcast_to(np.eye(skew.shape[-1]), skew.shape).copy()
    if terms > 1:
        total += 2 * skew
    if terms > 2:
        power = skew @ skew
        total += 2 * power
        for _ in range(3, terms - 1):
            power = power @ skew
            total += 2 * power
        total += power @ skew
    return total
