"""Fuse BOFT (arXiv:2311.06243): diag(s) W M^T, M a product of block-diagonal rotations in butterfly permutations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from pyc.compiler.weights import Expression, Rotated, Rotations, ScaledRows
from pyc.models.adapter_updates import ButterflyUpdate
from pyc.passes.adapters.fuse_adapter import FuseAdapter
from pyc.runtime.errors import AdapterError


@dataclass(frozen=True, slots=True)
class FuseBoft(FuseAdapter[ButterflyUpdate]):
    """Rotates the columns of the weights that an adapter names, and scales their rows."""

    name: ClassVar[str] = "fuse_boft"

    def updates(self) -> tuple[ButterflyUpdate, ...]:
        """Return the updates of the adapter."""
        return tuple(update for update in self.adapter.updates if isinstance(update, ButterflyUpdate))

    def changed(self, base: Expression, update: ButterflyUpdate) -> Expression:
        """Return the weight rotated once for each factor, and scaled."""
        self.refuse_part()
        out, inputs = base.shape
        count, size = self._blocks(inputs, update)
        factors = update.generators.shape[0]
        self.check_sizes(update.generators, (factors, count, size, size), update.module, base)
        self.check_sizes(update.scale, (out,), update.module, base)
        rotated = base
        for factor in range(factors):
            groups = count >> factor if factors > 1 else 0
            generators = replace(
                update.generators,
                shape=update.generators.shape[1:],
                offset=update.generators.offset + factor * update.generators.size_bytes // factors,
                size_bytes=update.generators.size_bytes // factors,
            )
            assert prod(generators.shape)
            rotated = Rotated(rotated, Rotations(generators, count, size, 0, 0.0), groups)
        return ScaledRows(rotated, update.scale)

    def _blocks(self, inputs: int, update: ButterflyUpdate) -> tuple[int, int]:
        given = update.count or update.size
        if inputs % given:
            blocks = f"blocks of {given}" if update.size else f"{given} blocks"
            raise AdapterError(
                f"adapter {self.adapter.reference!r}: tensor {update.generators.tensor!r}: {inputs} inputs of "
                f"{update.module} do not come in {blocks}; was the adapter trained on another model?"
            )
        count, size = (update.count, inputs // given) if update.count else (inputs // given, update.size)
        factors = update.generators.shape[0]
        if factors > 1 and (size % 2 or count % (1 << (factors - 1))):
            raise AdapterError(
                f"adapter {self.adapter.reference!r}: tensor {update.generators.tensor!r}: {count} blocks of {size} "
                f"have no butterfly of {factors} factors: expected blocks of an even size, their number divisible by "
                f"{1 << (factors - 1)}"
            )
        return count, size
