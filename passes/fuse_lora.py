"""Fuse LoRA: W becomes W + weight * scale * B A for every module that the adapter targets.

LoRA (arXiv:2106.09685) scales by alpha / r, rsLoRA (arXiv:2312.03732) by alpha / sqrt(r); the adapter reader
has already chosen. Full replacements (PEFT's modules_to_save) take the place of the weight they name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.compiler.ir import Module
from pyc.compiler.weights import Expression, LowRank
from pyc.models.adapters import Adapter
from pyc.passes.adapter_targets import check_shape, is_left_out, named_weight, touched_by, untie_head, with_replacements


@dataclass(frozen=True, slots=True)
class FuseLora:
    """Adds an adapter's low-rank updates to the weights they name, at `weight` of their strength."""

    adapter: Adapter
    weight: float
    name: ClassVar[str] = "fuse_lora"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ("fused",)

    def options(self) -> dict[str, str]:
        """Adapter name and weight."""
        return {"adapter": self.adapter.name, "weight": repr(self.weight)}

    def run(self, module: Module) -> Module:
        """Return the module with the updates in its weight expressions; AdapterError names what does not fit."""
        module = untie_head(module, touched_by(self.adapter, (update.module for update in self.adapter.low_rank)))
        weights: dict[str, Expression] = dict(module.weights)
        with_replacements(weights, self.adapter)
        for update in self.adapter.low_rank:
            if is_left_out(weights, update.module):
                continue
            name = named_weight(weights, update.module + ".weight", self.adapter.name)
            base = weights[name]
            check_shape(update.module, (update.b.shape[0], update.a.shape[1]), base.shape, self.adapter.name)
            weights[name] = LowRank(base, update.a, update.b, update.scale * self.weight)
        return replace(module.with_graph(module.graph, weights), sources=(*module.sources, *self.adapter.sources))
