"""Several adapters' tensors as one: the merges that PEFT names, and SLERP.

PEFT draws DARE's masks from torch's generator; here they come from a counter (Philox) under a seed of the recipe, so
that a recipe means one result on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.floating]

NEARLY_PARALLEL = 1 - 1e-9
"""Cosine above which an arc is taken as a line: their points differ by less than f32 rounds."""


def mixed(parts: Sequence[Wide], weights: Sequence[float], density: float, seeds: Sequence[int], vote: str) -> Wide:
    """Return the weighted sum of pruned parts, or by a vote on signs, as `weights.Mixed` describes them."""
    if seeds:
        parts = [_drawn(part, density, seed) for part, seed in zip(parts, seeds, strict=True)]
    elif density < 1:
        parts = [_largest(part, density) for part in parts]
    if not vote:
        return sum((part * weight for part, weight in zip(parts, weights, strict=True)), np.zeros_like(parts[0]))
    signs = [np.sign(part) for part in parts]
    elected = sum(parts if vote == "total" else signs, np.zeros_like(parts[0]))
    majority = np.where(elected >= 0, 1.0, -1.0)
    total, voters = np.zeros_like(parts[0]), np.zeros_like(parts[0])
    for part, sign, weight in zip(parts, signs, weights, strict=True):
        agrees = sign == majority
        total += part * weight * agrees
        voters += agrees
    return total / np.maximum(voters, 1)


def nearest_of_rank(matrix: Wide, rank: int) -> tuple[Wide, Wide]:
    """Return factors [out, rank] and [rank, in] of the nearest matrix of that rank."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank] * s[:rank], vt[:rank]


def nearest_of_product(first: Wide, second: Wide, rank: int) -> tuple[Wide, Wide]:
    """Return the same of a product [out, k] @ [k, in] with few k, which is never made."""
    left, upper = np.linalg.qr(first)
    right, lower = np.linalg.qr(second.T)
    u, vt = nearest_of_rank(upper @ lower.T, rank)
    return left @ u, vt @ right.T


def points_of_arc(b1: Wide, a1: Wide, b2: Wide, a2: Wide, position: float) -> tuple[float, float]:
    """Return what b1 @ a1 and b2 @ a2 are multiplied by at a position of the arc between them."""
    lengths = float(np.sqrt(max(_dot(b1, a1, b1, a1) * _dot(b2, a2, b2, a2), 0.0)))
    cosine = _dot(b1, a1, b2, a2) / lengths if lengths > 0 else 1.0
    if abs(cosine) >= NEARLY_PARALLEL:
        return 1 - position, position
    angle = float(np.arccos(cosine))
    return float(np.sin((1 - position) * angle) / np.sin(angle)), float(np.sin(position * angle) / np.sin(angle))


def _dot(b1: Wide, a1: Wide, b2: Wide, a2: Wide) -> float:
    """Return the sum of the elements of two products, multiplied one by one, without making them."""
    return float(np.sum((b1.T @ b2) * (a1 @ a2.T)))


def _largest(part: Wide, density: float) -> Wide:
    """Return a part with all but its largest magnitudes set to 0; of equal ones the first stay."""
    count = int(density * part.size)
    order = np.argsort(-np.abs(part), axis=None, kind="stable")
    kept = np.zeros_like(part)
    kept.flat[order[:count]] = part.flat[order[:count]]
    return kept


def _drawn(part: Wide, density: float, seed: int) -> Wide:
    """Return a part of which each element stays with probability `density`, and is divided by it."""
    if density >= 1:
        return part
    draws = np.random.Philox(key=seed).random_raw(part.size)
    stays = draws < np.uint64(int(density * 2.0**64))
    return np.where(stays.reshape(part.shape), part / density, 0.0)
