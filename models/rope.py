"""Rotary position embedding: inverse frequencies and their scaling for long contexts.

With d rotated features of a head, base b and i = 0 .. d/2 - 1, position p turns the pair (i, i + d/2) by the
angle p * f_i, and cos and sin are multiplied by `scale`. f_i before scaling is b^(-2i/d) (arXiv:2104.09864).

- linear (kaiokendev, 2023): f_i / factor.
- dynamic NTK (emozilla, 2023): for p >= original context L, the base becomes
  b * ((factor * (p + 1) / L) - (factor - 1))^(d / (d - 2)); below L nothing changes. A token keeps the angle
  of the length at which it was read, so one pass over n tokens equals n single steps (of transformers too).
- llama3 (Llama 3.1): with wavelength w = 2 pi / f_i and s = (L / w - low) / (high - low):
  w > L/low: f_i / factor; w < L/high: f_i; between: (1 - s) f_i / factor + s f_i.
- yarn (arXiv:2309.00071): with dim(r) = d ln(L / (2 pi r)) / (2 ln b), low = dim(beta_fast),
  high = dim(beta_slow) (rounded outwards when `truncate`), ramp_i = clip((i - low) / (high - low), 0, 1):
  f_i / factor * ramp_i + f_i * (1 - ramp_i). scale = attention_factor, or m(mscale) / m(mscale_all_dim) when
  both are given, or m(1), where m(x) = 0.1 x ln(factor) + 1 (1 for factor <= 1).

Computed in float64 and rounded to float32 once: within 4 ulp of transformers, which computes in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
MAX_HEAD_DIM = 8192
"""Features of a head, at most; models have 32 to 512."""

KINDS: tuple[RopeKind, ...] = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Parameters of one rotary embedding; those that `kind` does not read keep their defaults.

    `rotary_dim` is d, `original_context` is L (tokens), `attention_factor` None means the kind's own.
    """

    rotary_dim: int
    kind: RopeKind = "default"
    base: float = 10000.0
    factor: float = 1.0
    original_context: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True

    def reach(self, context: int) -> int:
        """Return the longest context, in tokens, that a model trained for `context` is meant to serve."""
        if self.kind in ("linear", "dynamic"):
            return int(context * self.factor)
        if self.kind == "yarn":
            return max(context, int(self.original_context * self.factor))
        return context


def inverse_frequencies(rope: RopeConfig) -> tuple[float, ...]:
    """Return f_i, [rotary_dim / 2] float32 values in radians a position (dynamic NTK: those below L)."""
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    plain = np.power(rope.base, -exponents)
    match rope.kind:
        case "default" | "dynamic":
            values = plain
        case "linear":
            values = plain / rope.factor
        case "llama3":
            smooth = rope.original_context * plain / (2 * math.pi)
            smooth = (smooth - rope.low_frequency_factor) / (
                rope.high_frequency_factor - rope.low_frequency_factor
            )
            smooth = np.clip(smooth, 0.0, 1.0)
            values = (1 - smooth) * plain / rope.factor + smooth * plain
        case "yarn":
            ramp = _yarn_ramp(rope)
            values = plain / rope.factor * ramp + plain * (1 - ramp)
    return tuple(float(value) for value in values.astype(np.float32))


def _yarn_ramp(rope: RopeConfig) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    def dimension(rotations: float) -> float:
        turns = rope.original_context / (rotations * 2 * math.pi)
        return rope.rotary_dim * math.log(turns) / (2 * math.log(rope.base))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001  # as the reference does, against division by zero
    pairs = np.arange(rope.rotary_dim // 2, dtype=np.float64)
    return np.clip((pairs - low) / (high - low), 0.0, 1.0)


def attention_scale(rope: RopeConfig) -> float:
    """Return what cos and sin are multiplied by; 1 except for yarn."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(rope.factor, rope.mscale) / _magnitude(rope.factor, rope.mscale_all_dim)
    return _magnitude(rope.factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def angle_attributes(rope: RopeConfig) -> dict[str, float | int]:
    """Return the attributes of the `rope_angles` operator; the last three matter only when `dynamic` is 1."""
    return {
        "scale": attention_scale(rope),
        "base": rope.base,
        "factor": rope.factor,
        "original_context": rope.original_context,
        "dynamic": int(rope.kind == "dynamic"),
    }
