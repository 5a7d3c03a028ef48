"""Fuse OFT (arXiv:2306.07280): W R^T for a block-diagonal R of rotations, which PEFT applies to the module's input.

R is the Cayley transform of learnt skew-symmetric blocks, or the Neumann series in its place (use_cayley_neumann);
constrained OFT (coft) holds the blocks to a length first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.weights import Expression, Rotated, Rotations
from pyc.models.adapter_updates import RotationUpdate
from pyc.passes.adapters.fuse_adapter import FuseAdapter


@dataclass(frozen=True, slots=True)
class FuseOft(FuseAdapter[RotationUpdate]):
    """Rotates the columns of the weights that an adapter names."""

    name: ClassVar[str] = "fuse_oft"

    def updates(self) -> tuple[RotationUpdate, ...]:
        """Return the updates of the adapter."""
        return tuple(update for update in self.adapter.updates if isinstance(update, RotationUpdate))

    def changed(self, base: Expression, update: RotationUpdate) -> Expression:
        """Return the weight with rotated columns."""
        self.refuse_part()
        count, size = blocks_of(base.shape[1], update.count, update.size)
        wanted = (1 if update.is_shared else count, size * (size - 1) // 2)
        self.check_sizes(update.generators, wanted, update.module, base)
        return Rotated(base, Rotations(update.generators, count, size, update.terms, update.limit), 0)


def blocks_of(inputs: int, count: int, size: int) -> tuple[int, int]:
    """Return number and size of OFT's blocks, one of which is given: the nearest divisor of the inputs is taken."""
    if size:
        size = _nearest_divisor(inputs, size)
        return inputs // size, size
    count = _nearest_divisor(inputs, count)
    return count, inputs // count


def _nearest_divisor(inputs: int, wanted: int) -> int:
    """Return the divisor of `inputs` nearest to `wanted`; the lower one of two, and `inputs` for anything larger."""
    if wanted >= inputs:
        return inputs
    higher = next(number for number in range(wanted, inputs + 1) if inputs % number == 0)
    lower = next(number for number in range(wanted, 0, -1) if inputs % number == 0)
    return lower if wanted - lower <= higher - wanted else higher
