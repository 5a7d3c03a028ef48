"""Fuse LoHa (arXiv:2108.06098): W + weight * alpha / r * (W1a W1b) * (W2a W2b), products element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.weights import Added, Expression, Hadamard
from pyc.models.adapter_updates import HadamardUpdate
from pyc.passes.adapters.adapter_targets import check_shape
from pyc.passes.adapters.fuse_adapter import FuseAdapter


@dataclass(frozen=True, slots=True)
class FuseLoha(FuseAdapter[HadamardUpdate]):
    """Adds products of two matrices of low rank to the weights they name."""

    name: ClassVar[str] = "fuse_loha"

    def updates(self) -> tuple[HadamardUpdate, ...]:
        """Return the updates of the adapter."""
        return tuple(update for update in self.adapter.updates if isinstance(update, HadamardUpdate))

    def changed(self, base: Expression, update: HadamardUpdate) -> Expression:
        """Return base + weight * scale * first * second."""
        check_shape(update.module, update.first.shape, base.shape, self.adapter.reference, update.first)
        return Added(base, Hadamard(update.first, update.second), update.scale * self.weight)
