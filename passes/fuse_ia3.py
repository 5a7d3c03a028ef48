"""Fuse IA3 (arXiv:2205.05638): learned factors l are folded into the weights they rescale.

On a module's output (keys, values): l * (W x + b) = (diag(l) W) x + l * b.
On a feed-forward module's input: W (l * x) = (W diag(l)) x; the bias stays.
An adapter weight w other than 1 uses 1 + w * (l - 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.compiler.ir import Module
from pyc.compiler.weights import Blended, Expression, ScaledColumns, ScaledRows
from pyc.models.adapters import Adapter
from pyc.passes.adapter_targets import is_left_out, named_weight, touched_by, untie_head, with_replacements
from pyc.runtime.errors import AdapterError


@dataclass(frozen=True, slots=True)
class FuseIa3:
    """Multiplies an adapter's factors into rows or columns of the weights they name."""

    adapter: Adapter
    weight: float
    name: ClassVar[str] = "fuse_ia3"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ("fused",)

    def options(self) -> dict[str, str]:
        """Adapter name and weight."""
        return {"adapter": self.adapter.name, "weight": repr(self.weight)}

    def run(self, module: Module) -> Module:
        """Return the module with the factors in its weight expressions; AdapterError names what does not fit."""
        module = untie_head(module, touched_by(self.adapter, (scale.module for scale in self.adapter.scales)))
        weights: dict[str, Expression] = dict(module.weights)
        with_replacements(weights, self.adapter)
        for scale in self.adapter.scales:
            if is_left_out(weights, scale.module):
                continue
            name = named_weight(weights, scale.module + ".weight", self.adapter.name)
            base = weights[name]
            expected = base.shape[1 if scale.side == "input" else 0]
            if scale.vector.shape != (expected,):
                raise AdapterError(
                    f"{self.name}: adapter {self.adapter.name!r}: {scale.module}: {scale.vector.shape[0]} factors on "
                    f"the {scale.side} of a weight {list(base.shape)}, expected {expected}; "
                    "was the adapter trained on another model?"
                )
            vector = scale.vector if self.weight == 1.0 else Blended(scale.vector, self.weight)
            if scale.side == "input":
                weights[name] = ScaledColumns(base, vector)
                continue
            weights[name] = ScaledRows(base, vector)
            bias = name.removesuffix(".weight") + ".bias"
            if bias in weights:
                weights[bias] = ScaledRows(weights[bias], vector)
        return replace(module.with_graph(module.graph, weights), sources=(*module.sources, *self.adapter.sources))
