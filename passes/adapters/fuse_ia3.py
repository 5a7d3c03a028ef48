"""Fuse IA3 (arXiv:2205.05638): learned factors l are folded into the weights they rescale.

On a module's output (keys, values): l * (W x + b) = (diag(l) W) x + l * b.
On a feed-forward module's input: W (l * x) = (W diag(l)) x; the bias stays.
An adapter weight w other than 1 uses 1 + w * (l - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.weights import Blended, Expression, ScaledColumns, ScaledRows
from pyc.models.adapter_updates import VectorScale
from pyc.passes.adapters.fuse_adapter import FuseAdapter
from pyc.runtime.errors import AdapterError


@dataclass(frozen=True, slots=True)
class FuseIa3(FuseAdapter[VectorScale]):
    """Multiplies an adapter's factors into rows or columns of the weights they name."""

    name: ClassVar[str] = "fuse_ia3"

    def updates(self) -> tuple[VectorScale, ...]:
        """Return the factors."""
        return self.adapter.scales

    def changed(self, base: Expression, update: VectorScale) -> Expression:
        """Return the weight with the factors in its rows or columns."""
        expected = base.shape[1 if update.side == "input" else 0]
        if update.vector.shape != (expected,):
            raise AdapterError(
                f"{self.name}: adapter {self.adapter.reference!r}: {update.module}: {update.vector.shape[0]} factors "
                f"on the {update.side} of a weight {list(base.shape)}, expected {expected}; "
                "was the adapter trained on another model?"
            )
        kind = ScaledColumns if update.side == "input" else ScaledRows
        return kind(base, self._factors(update))

    def change_others(self, weights: dict[str, Expression], name: str, update: VectorScale) -> None:
        """Scale the bias with the output."""
        bias = name.removesuffix(".weight") + ".bias"
        if update.side == "output" and bias in weights:
            weights[bias] = ScaledRows(weights[bias], self._factors(update))

    def _factors(self, update: VectorScale) -> Expression:
        return update.vector if self.weight == 1.0 else Blended(update.vector, self.weight)
