"""Fuse VeRA (arXiv:2310.11454): W + weight * diag(lambda_b) B diag(lambda_d) A; all modules share A and B.

A and B are as large as the largest module needs; a smaller one takes their leading part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.weights import Expression, Leading, LowRank, ScaledRows
from pyc.models.adapter_updates import SharedUpdate
from pyc.passes.adapters.fuse_adapter import FuseAdapter
from pyc.runtime.errors import AdapterError


@dataclass(frozen=True, slots=True)
class FuseVera(FuseAdapter[SharedUpdate]):
    """Adds products of shared matrices, scaled for each module, to the weights they name."""

    name: ClassVar[str] = "fuse_vera"

    def updates(self) -> tuple[SharedUpdate, ...]:
        """Return the updates of the adapter."""
        return tuple(update for update in self.adapter.updates if isinstance(update, SharedUpdate))

    def changed(self, base: Expression, update: SharedUpdate) -> Expression:
        """Return the weight with the update."""
        out, inputs = base.shape
        self.check_sizes(update.rows, (out,), update.module, base)
        rank = update.ranks.shape[0]
        for source, got, wanted in ((update.a, update.a.shape[1], inputs), (update.b, update.b.shape[0], out)):
            if got < wanted:
                raise AdapterError(
                    f"adapter {self.adapter.reference!r}: tensor {source.tensor!r} has shape {list(source.shape)}, too "
                    f"small for the weight {list(base.shape)} of {update.module}; was the adapter trained on another "
                    "model?"
                )
        a = ScaledRows(Leading(update.a, rank, inputs), update.ranks)
        b = ScaledRows(Leading(update.b, out, rank), update.rows)
        return LowRank(base, a, b, self.weight)
