"""What choosing schemes for a model's matrices found: for the report of a build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyc.compiler.recipe.types import Recipe


@dataclass(frozen=True, slots=True)
class ChosenGroup:
    """Matrices that take one scheme: the bytes of their tensors, and the distance from the exact model that rounding
    them alone is predicted to cause; `is_fixed`: the recipe says so."""

    names: tuple[str, ...]
    scheme: str
    size_bytes: int
    weights: int
    distance: float
    is_fixed: bool


@dataclass(frozen=True, slots=True)
class UniformScheme:
    """A scheme for all matrices, and for embeddings, beside the mix: its bytes and measured distance."""

    scheme: str
    embeddings: str
    size_bytes: int
    measured: float


@dataclass(frozen=True, slots=True)
class Mixture:
    """The schemes of a model's matrices, chosen by `goal`, a key of the recipe's quantize.

    `size_bytes` are those of all tensors, `matrix_bytes` of matrices alone. `predicted` is the sum of the groups'
    distances and `measured` that of the whole, over `positions` of the calibration text: nats of KL a token for
    decoders, one minus the cosine for encoders (`metric`). `uniform` is the best uniform scheme within the same goal,
    None where none is; `is_uniform`: it was better, and taken. `tokens_per_second` is how fast the choice decoded here,
    and what bytes had predicted, where the goal is a speed. `recipe` has the schemes as overrides.
    """

    goal: str
    wanted: float
    groups: tuple[ChosenGroup, ...]
    size_bytes: int
    metric: str
    positions: int
    predicted: float
    measured: float
    uniform: UniformScheme | None
    is_uniform: bool
    tokens_per_second: tuple[float, float] | None
    recipe: Recipe

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the tensors of matrices."""
        return sum(group.size_bytes for group in self.groups)

    @property
    def bits_per_weight(self) -> float:
        """Of matrices, with scales and padding."""
        return 8 * self.matrix_bytes / sum(group.weights for group in self.groups)

    def by_scheme(self) -> tuple[SchemeShare, ...]:
        """Return what each scheme has, those of fewest bits a weight first."""
        names = dict.fromkeys(group.scheme for group in self.groups)
        shares = [_share(name, [group for group in self.groups if group.scheme == name]) for name in names]
        return tuple(sorted(shares, key=lambda share: share.size_bytes / share.weights))


@dataclass(frozen=True, slots=True)
class SchemeShare:
    """The matrices of one scheme."""

    scheme: str
    matrices: int
    weights: int
    size_bytes: int
    distance: float


def _share(scheme: str, groups: Sequence[ChosenGroup]) -> SchemeShare:
    return SchemeShare(
        scheme,
        sum(len(group.names) for group in groups),
        sum(group.weights for group in groups),
        sum(group.size_bytes for group in groups),
        sum(group.distance for group in groups),
    )
