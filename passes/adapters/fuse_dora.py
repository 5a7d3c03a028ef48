"""Fuse DoRA (arXiv:2402.09353): rows of W + weight * scale * B A are brought to the adapter's lengths.

As in PEFT, `weight` scales B A and not the lengths: at any weight, row i has the length that the adapter learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.weights import Directed, Expression, LowRank
from pyc.models.adapter_updates import LowRankUpdate
from pyc.passes.adapters.adapter_targets import check_shape
from pyc.passes.adapters.fuse_adapter import FuseAdapter


@dataclass(frozen=True, slots=True)
class FuseDora(FuseAdapter[LowRankUpdate]):
    """Adds an adapter's low-rank updates and sets the lengths of rows."""

    name: ClassVar[str] = "fuse_dora"

    def updates(self) -> tuple[LowRankUpdate, ...]:
        """Return the low-rank updates; each has a magnitude."""
        return self.adapter.low_rank

    def changed(self, base: Expression, update: LowRankUpdate) -> Expression:
        """Return base + weight * scale * B A with rows of the lengths learnt."""
        shape = (update.b.shape[0], update.a.shape[1])
        check_shape(update.module, shape, base.shape, self.adapter.reference, update.a, update.b)
        assert update.magnitude is not None
        return Directed(LowRank(base, update.a, update.b, update.scale * self.weight), update.magnitude)
