"""What an adapter does to the weights of modules: one class for each form of update.

A pass of its own (`passes.fuse_*`) turns each into a weight expression, once it knows the weight's shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyc.compiler.weights import Expression, MatMul, Source


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """weight += scale * (b @ a) on the weight [out, in] of `module`; a [rank, in], b [out, rank].

    With a `magnitude` [out] (DoRA), rows of the result are brought to these lengths.
    """

    module: str
    a: Expression
    b: Expression
    scale: float
    magnitude: Source | None = None


@dataclass(frozen=True, slots=True)
class VectorScale:
    """IA3: `vector` [n] scales the "output" (weight's rows and the bias) or "input" (columns) of `module`."""

    module: str
    vector: Source
    side: Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class HadamardUpdate:
    """LoHa: weight += scale * (first * second), two products of low rank."""

    module: str
    first: MatMul
    second: MatMul
    scale: float


@dataclass(frozen=True, slots=True)
class KroneckerUpdate:
    """LoKr: weight += scale * kron(first, second), each a matrix or a product of rank `rank`.

    `factor` and `decompose_both` say which shapes PEFT gives them.
    """

    module: str
    first: Expression
    second: Expression
    scale: float
    rank: int
    factor: int
    decompose_both: bool


@dataclass(frozen=True, slots=True)
class SharedUpdate:
    """VeRA: weight += diag(rows) b diag(ranks) a, of the leading part of matrices that all modules share."""

    module: str
    a: Source
    b: Source
    ranks: Source
    rows: Source


@dataclass(frozen=True, slots=True)
class RotationUpdate:
    """OFT: the input is rotated in blocks that `generators` [blocks, n] make.

    One of `count` and `size` is 0, and follows from the other.
    """

    module: str
    generators: Source
    count: int
    size: int
    is_shared: bool
    terms: int
    limit: float


@dataclass(frozen=True, slots=True)
class ButterflyUpdate:
    """BOFT: as many rotations as `generators` [factors, blocks, size, size] has, then `scale` of the output."""

    module: str
    generators: Source
    scale: Source
    count: int
    size: int
    factors: int


Update = (
    LowRankUpdate
    | VectorScale
    | HadamardUpdate
    | KroneckerUpdate
    | SharedUpdate
    | RotationUpdate
    | ButterflyUpdate
)
